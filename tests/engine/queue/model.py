"""What a queue does, told plainly: no indexes, no effects, no drafts. Written from the rules, not from the engine.

Each verb either raises `No`, having changed nothing, or changes the lives as the rules say. Where the rules leave a
choice (how long a backoff is, when an ended run is forgotten), a verb is told what was seen, and judges that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LAYERS = ("forced", "critical", "scheduled", "normal", "background")
FAIR = 16
ENDED = ("failed", "cancelled", "succeeded", "discarded")


class No(Exception):
    """Refused, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass
class Life:
    """One submitted run, through all its lives."""

    id: str
    queue: str
    layer: int
    sequence: int
    content: object
    created: int
    failures_max: int = 1
    crashes_max: int = 1
    key: str = ""
    limit: int = 0
    steps: dict[str, str] = field(default_factory=dict)
    state: str = "queued"
    token: int = 0
    failures: int = 0
    crashes: int = 0
    due: int | None = None
    longest: int | None = None
    since: int | None = None
    asked: bool = False
    owner: str | None = None
    era: int = 0
    deadline: int = 0
    granted: int = 0
    reported: bool = False
    handed: tuple[str, int] | None = None
    ended_at: int = 0

    def waiting_since(self) -> int:
        if self.due is not None:
            return self.due
        return self.created if self.since is None else self.since


@dataclass
class Plain:
    """All runs of one document, and what time it is. `now` is UTC ms, `mono` ms of the present boot; `era` counts boots
    and restores, each of which ends every lease.
    """

    now: int
    mono: int
    era: int = 1
    lives: dict[str, Life] = field(default_factory=dict)
    floor: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    claims: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    submitted: int = 0
    gone: int = 0
    """Lives that another of the same id took the place of."""
    pruned: int = 0
    completed: set[tuple[str, int]] = field(default_factory=set)

    # what can be asked

    def find(self, run: str) -> Life:
        life = self.lives.get(run)
        if life is None or life.state == "pruned":
            raise No("missing")
        return life

    def held(self, run: str, token: int) -> Life:
        """The fence: the life that its holder, under *token*, may speak for."""
        life = self.find(run)
        if life.state == "running" and life.token == token:
            return life
        if life.state != "discarded" and life.token == token and life.reported:
            raise No("illegal_transition")
        raise No("stale_lease")

    def is_due(self, life: Life) -> bool:
        if life.due is None:
            return True
        wait = life.due - self.now
        return wait <= 0 or (life.longest is not None and wait > life.longest)

    def has_room(self, life: Life) -> bool:
        if not life.key:
            return True
        active = sum(1 for each in self.lives.values() if each.state == "running" and each.key == life.key)
        return active < life.limit

    def claimable(self, queue: str) -> list[Life]:
        """In the order in which they are handed out."""
        found = [
            life
            for life in self.lives.values()
            if life.queue == queue and life.state == "queued" and not life.asked and self.is_due(life)
        ]
        return sorted((life for life in found if self.has_room(life)), key=lambda life: (life.layer, life.sequence))

    def is_over(self, life: Life) -> bool:
        """Whether the lease of a running life ran out: its boot or epoch is over, or its time is."""
        return life.era != self.era or life.deadline <= self.mono

    def repeats(self, run: str, token: int) -> tuple[str, int] | None:
        """What a holder gets again that completes its run once more: what it got then, while that lease lives."""
        life = self.lives.get(run)
        if life is None or life.state == "running" or life.token != token or life.handed is None:
            return None
        other = self.lives.get(life.handed[0])
        alive = other is not None and (other.state, other.token) == ("running", life.handed[1])
        return life.handed if other is not None and alive and not self.is_over(other) else None

    def count(self, state: str) -> int:
        return sum(1 for life in self.lives.values() if life.state == state)

    # submitters and operators

    def knows(self, life: Life) -> bool:
        """Whether it is there already, under its own id."""
        there = self.lives.get(life.id)
        return there is not None and there.state not in ("discarded", "pruned") and there.content == life.content

    def has_recent(self, life: Life, within: int) -> bool:
        """Whether the same was submitted less than so many ms ago, under whatever id."""
        return any(
            (each.queue, each.content) == (life.queue, life.content) and abs(self.now - each.created) < within
            for each in self.lives.values()
            if each.state not in ("discarded", "pruned")
        )

    def submit(self, life: Life, *, replace: bool = False) -> str:
        """`new`, or `known`: it was there already."""
        there = self.lives.get(life.id)
        if self.knows(life):
            return "known"
        if there is not None and there.state not in ("discarded", "pruned") and not replace:
            raise No("conflict")
        self.used.add(life.queue)
        if there is not None:
            self.gone += there.state != "pruned"
        life.token = self.floor.get(life.id, 0)
        self.lives[life.id] = life
        self.submitted += 1
        return "new"

    def cancel(self, run: str) -> None:
        life = self.find(run)
        if life.state in ENDED:
            raise No("illegal_transition")
        life.asked = True
        if life.state == "queued":
            self.end(life, "cancelled")
        elif self.is_over(life):
            self.reap(run)  # nobody is there any more that could hear of it

    def retry_by_operator(self, run: str) -> None:
        life = self.find(run)
        if life.state not in ("failed", "cancelled"):
            raise No("illegal_transition")
        life.failures = life.crashes = 0
        life.asked = False
        life.state = "queued"
        life.due = life.longest = None
        life.since = self.now
        self._renew(life)

    def discard(self, run: str) -> None:
        life = self.find(run)
        if life.state in ("succeeded", "discarded"):
            raise No("illegal_transition")
        self.end(life, "discarded")

    def pause(self, queue: str, on: bool) -> bool:
        if queue not in self.used:
            raise No("missing")
        if (queue in self.paused) == on:
            return False
        (self.paused.add if on else self.paused.discard)(queue)
        return True

    def promote(self, runs: Iterable[str]) -> None:
        for run in runs:
            life = self.find(run)
            if life.state != "queued":
                raise No("illegal_transition")
            if life.due is not None:
                life.since = min(self.now, life.due)
                life.due = life.longest = None

    def due_again(self) -> list[str]:
        """Scheduled ones whose time has come."""
        return [life.id for life in self.lives.values() if life.state == "queued" and life.due and self.is_due(life)]

    # consumers

    def claim(self, queue: str, owner: str, lease_ms: int, count: int, got: Sequence[tuple[str, int]]) -> None:
        """Judge what a claim gave, run by run."""
        for run, token in got:
            assert queue not in self.paused, f"{run} came from a paused queue"
            ready = self.claimable(queue)
            turn = self.claims.get(queue, 0) + 1
            wanted = self.wanted(ready, turn)
            assert ready, f"{run} was handed out, and nothing is claimable"
            assert run == wanted.id, f"{run} was handed out before {wanted.id}, claim {turn} of {queue}"
            self.claims[queue] = turn
            assert token > self.floor.get(run, 0), f"token {token} of {run} is no new one"
            life = self.lives[run]
            life.token = self.floor[run] = token
            life.state, life.owner, life.era = "running", owner, self.era
            life.granted, life.deadline = lease_ms, self.mono + lease_ms
            life.due = life.longest = life.since = life.handed = None
            life.reported = False
        if len(got) < count and queue not in self.paused:
            assert not self.claimable(queue), f"{self.claimable(queue)[0]} is claimable, and was not handed out"

    @staticmethod
    def wanted(ready: list[Life], turn: int) -> Life:
        """Whose turn it is: the longest waiting of any layer but forced, once in sixteen; else the first in order."""
        if turn % FAIR == 0:
            waiting = [life for life in ready if LAYERS[life.layer] != "forced"]
            if waiting:
                return min(waiting, key=lambda life: (life.waiting_since(), life.sequence))
        return ready[0]

    def complete(self, run: str, token: int) -> None:
        life = self.held(run, token)
        if len(life.steps) == 1 and not life.asked:
            self._each_step(life, pending="succeeded", running="succeeded")
        states = set() if life.asked else set(life.steps.values())
        if states & {"pending", "running"} - ({"pending"} if "failed" in states else set()):
            raise No("steps_not_terminal")
        life.reported = True
        if life.asked:
            self.end(life, "cancelled")
            return
        self._each_step(life, pending="skipped")
        if "failed" in states:
            self.fail(run, token, final=False)
        else:
            self.end(life, "succeeded")
            self.completed.add((run, token))

    def fail(self, run: str, token: int, *, final: bool) -> None:
        life = self.held(run, token)
        life.failures += 1
        life.reported = True
        if life.asked:
            self.end(life, "cancelled")
        elif final or life.failures >= life.failures_max:
            self._each_step(life, pending="skipped", running="failed")
            self.end(life, "failed")
        else:
            self._release(life)
            self._renew(life)

    def beat(self, run: str, token: int, lease_ms: int | None) -> None:
        life = self.held(run, token)
        life.granted = life.granted if lease_ms is None else lease_ms
        life.deadline, life.era = self.mono + life.granted, self.era

    def drain(self, run: str, token: int) -> None:
        life = self.held(run, token)
        life.reported = True
        if life.asked:
            self.end(life, "cancelled")
            return
        self._release(life)
        self._give_back(life)

    def reap(self, run: str) -> None:
        life = self.find(run)
        assert life.state == "running", f"{run} was taken from nobody"
        assert self.is_over(life), f"{run} was taken from a holder whose lease is valid"
        life.crashes += 1
        if life.asked:
            self.end(life, "cancelled")
        elif life.crashes >= life.crashes_max:
            self._each_step(life, pending="skipped", running="failed")
            self.end(life, "failed")
        else:
            self._release(life)
            self._give_back(life)

    def step(self, run: str, name: str, token: int, what: str) -> None:
        life = self.held(run, token)
        state = life.steps.get(name)
        if state is None:
            raise No("missing")
        if what == "started":
            if state != "pending":
                raise No("illegal_transition")
            if life.asked:
                raise No("cancel_requested")
            if name == "second" and life.steps["first"] != "succeeded":
                raise No("not_available")
            life.steps[name] = "running"
        elif state != "running":
            raise No("illegal_transition")
        else:
            life.steps[name] = what

    # what several verbs do

    def _release(self, life: Life) -> None:
        life.state, life.owner = "queued", None

    def _each_step(self, life: Life, **to: str) -> None:
        life.steps = {name: to.get(state, state) for name, state in life.steps.items()}

    def _renew(self, life: Life) -> None:
        life.steps = {name: state if state == "succeeded" else "pending" for name, state in life.steps.items()}

    def _give_back(self, life: Life) -> None:
        self._each_step(life, running="pending")

    def end(self, life: Life, state: str) -> None:
        if state in ("cancelled", "discarded"):
            self._each_step(life, pending="cancelled", running="cancelled")
        if life.state not in ENDED:
            life.ended_at = self.now
        life.state, life.owner = state, None
        life.due = life.longest = None
