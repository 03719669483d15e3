"""One story: controllers, people and accidents over one disk and one provider, turn by turn, and then rest.

Not promised: any order but that of the seed. The same seed, turns and muted accidents always give the same story.

While a story goes on, only what must never be is a wrong. Now and then, and at its end, nothing goes wrong any more and
time passes until all is quiet; then `judging` says what must hold.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

from msgspec import Struct

from controller.clock import FakeClock
from controller.engine.age import latest_time
from controller.engine.due import next_due
from controller.engine.report import Report
from controller.model.edit import Draft, apply_edit
from controller.model.errors import Busy, ControllerError, NotDurable, Refusal, StrictError
from controller.model.invariants import AT_REST, violations
from controller.model.policy import Release
from controller.model.records import INITIALISED, Document, RunState, new_document
from controller.store.memory import MemoryDisk
from simulation import acts, judging, setting, watching
from simulation.permits import Permits
from simulation.seats import Died, Seat
from simulation.whims import Accident, Whims
from simulation.world import World

LINEAGE = "22222222-2222-4222-8222-222222222222"
TURNS = 120
REST_EVERY = 40
DEEPEST = 2
"""So many processes may be held up inside each other."""
_NEVER = frozenset(
    {
        *("internal", "invariant_broken", "scope_exceeded", "fence_broken", "lock_reentered", "lock_lost"),
        *("revision_moved", "broken_action", "document_corrupt", "edited_outside", "slot_taken", "usage"),
    }
)
"""Errors that say that the engine itself is wrong, whoever met them."""


class Wrong(Exception):
    """Something that must not be."""


class Told(Struct, frozen=True):
    """A story that is over. `wrong` None: nothing was. `story` is turn and line; `counts` what was done in it."""

    seed: int
    wrong: str | None
    story: tuple[tuple[int, str], ...]
    happened: tuple[Accident, ...]
    commits: int
    calls: int
    deaths: int


class StoryClock(FakeClock):
    """Whoever waits lets the world go on."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Callable[[], None] = lambda: None

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.moved()


class Story:
    """Tell it with `tell`. *turns* None: all of them."""

    def __init__(
        self, seed: int, *, turns: Iterable[int] | None = None, muted: frozenset[Accident] = frozenset()
    ) -> None:
        self.seed = seed
        self.turns = tuple(range(TURNS) if turns is None else turns)
        self.whims = Whims(seed, muted)
        self.clock = StoryClock()
        nature = setting.nature(self.whims)
        self.policy = setting.policy(self.whims, nature)
        self.weather = setting.weather(self.whims)
        self.tampering = self.whims.maybe(0.3)
        self.permits = Permits(self)
        self.world = World(LINEAGE, self.clock, self.whims, nature, self.permits)
        self.clock.moved = self.world.tick
        self.disk = MemoryDisk(_first_document(self.clock))
        self.disk.fault = self._fault
        self.seats: dict[str, Seat] = {}
        self.stack: list[Seat] = []
        self.submitted = 0
        self.deaths = 0
        self.calls = 0
        self.jumped = False
        self.set_back = 0
        self.switched_at = 0
        self._checked: Document | None = None
        self._committed = self.document
        self._pid = 1

    # Telling it

    def tell(self) -> Told:
        wrong = None
        try:
            for turn in self.turns:
                self.whims.turn(turn)
                self._turn()
                self._check()
                if turn % REST_EVERY == REST_EVERY - 1:
                    self.rest()
            self.whims.turn(TURNS)
            self.rest()
            self.end()
        except Wrong as found:
            wrong = str(found)
        except Exception as error:  # noqa: BLE001 - whatever the engine raises that nobody foresaw is a wrong as well
            frame = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {error} ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
        return Told(
            self.seed,
            wrong,
            tuple(self.whims.told),
            tuple(self.whims.happened),
            self.document.revision,
            self.calls,
            self.deaths,
        )

    def _turn(self) -> None:
        kinds = {"reconcile": 30.0, "replay": 4.0, "time": 14.0, "people": 45.0}
        if self.weather.jumps:
            kinds["jump"] = 1.5
        match self.whims.weighed(kinds):
            case "reconcile":
                seat = self._controller()
                self.act(seat, "reconciles", lambda: self.reconcile(seat))
            case "replay":
                seat = self._controller()
                self.act(seat, "replays", lambda: self._report(seat.reconciler.replay()))
            case "people":
                self._people()
            case "jump":
                self._jump()
            case _:
                self.pass_time("time passes")
        self.clock.advance(0.05)

    def _people(self) -> None:
        what = self.whims.weighed({what: weight for what, (weight, _) in acts.PEOPLE.items()})
        _, do = acts.PEOPLE[what]
        seat = self.newcomer("somebody")
        self.act(seat, what, lambda: do(self, seat))

    def _jump(self) -> None:
        seconds = self.whims.one_of((-7_200, -30, -3, 45, 7_200))
        self.whims.tell(f"the clock is set by {seconds} s")
        self.clock.jump(seconds)
        self.set_back = max(0, self.set_back - seconds)
        self.jumped = True
        # Behind what the document knows, every key counts as forgotten; otherwise nobody can notice how old it is.
        noticed = self.clock.now_ms() < latest_time(self.document)
        self.world.jumped(0 if noticed else max(0, -seconds))

    def pass_time(self, what: str, most: float = 3.0) -> None:
        grace = self.world.nature.grace
        seconds = self.whims.one_of((0.3, 2.0, 10.0, self.whims.between(0.0, most * grace)))
        seconds = min(seconds, most * grace)
        self.whims.tell(f"{what}: {seconds:.1f} s")
        self.clock.advance(seconds)

    # Who does it

    def newcomer(self, name: str) -> Seat:
        self._pid += 1
        return Seat(self, name, self._pid)

    def _controller(self) -> Seat:
        """One of three controllers that nobody holds up: two run on until they die, cron starts one for this."""
        name = self.whims.one_of(("one", "two", "cron"))
        seat = self.seats.get(name)
        if name == "cron" or (seat is not None and seat in self.stack):
            return self.newcomer("cron")
        if seat is None or not seat.alive:
            seat = self.seats[name] = self.newcomer(name)
        return seat

    def act(self, seat: Seat, what: str, do: Callable[[], object]) -> bool:
        """Let *seat* do it, and die of it, or be refused. Whether it came to its end."""
        self.whims.tell(f"{'  ' * len(self.stack)}{seat.name}: {what}")
        self.stack.append(seat)
        try:
            do()
        except Died:
            self.deaths += 1
            return False
        except ControllerError as error:
            self._judge_error(error)
            self.whims.tell(f"{'  ' * len(self.stack)}refused: {error.what}")
            return False
        finally:
            self.stack.pop()
        return True

    def reconcile(self, seat: Seat) -> Report:
        report = seat.reconciler.reconcile()
        self._report(report)
        return report

    def _report(self, report: Report) -> None:
        for parked in report.parked:
            self.whims.tell(f"  parked {parked.type} {parked.key[:6]} for slot {parked.slot}: {parked.why}")
        for sent in report.sent:
            self.whims.tell(f"  sent {sent.type} {sent.key[:6]} of slot {sent.slot}: {sent.reason} {sent.detail}")
            if sent.unsaved is not None and not isinstance(sent.unsaved, Busy | NotDurable):
                raise Wrong(f"slot {sent.slot}: an answer could not be applied: {sent.unsaved.what}")
        for error in report.errors:
            self._judge_error(error)
            if isinstance(error, Refusal):
                raise Wrong(f"a reconcile was refused something: {error.code}: {error.what}")

    @staticmethod
    def _judge_error(error: ControllerError) -> None:
        if error.code in _NEVER or isinstance(error, StrictError):
            raise Wrong(f"{error.code}: {error.what}") from error

    def overtake(self, held_up: Seat, where: str) -> None:
        """Others go on while *held_up* is."""
        if len(self.stack) > DEEPEST:
            return
        self.whims.tell(f"{'  ' * len(self.stack)}{held_up.name} is overtaken: {where}")
        for _ in range(self.whims.number(1, 2)):
            if self.whims.maybe(0.6):
                seat = self._controller()
                self.act(seat, "reconciles", lambda seat=seat: self.reconcile(seat))  # type: ignore[misc]
            else:
                self._people()

    def _fault(self, point: str) -> None:
        before = self._committed
        if point == "written":
            policy = self.stack[-1].reconciler.ground.policy if self.stack else self.policy
            wrong = watching.wrong_with(self, policy, self._committed, self.document)
            self._committed = self.document
            if wrong is not None:
                self.world.wrongs.append(wrong)
        if not self.stack:
            return
        match self.whims.accident(self.weather.commits):
            case "dies":
                self.stack[-1].die(f"at {point!r} of a commit")
            case "fails":
                self.whims.tell(f"  {self.stack[-1].name}: the disk is full at {point!r}")
                self._committed = before  # the line is taken back
                raise OSError(28, "no space left")

    # What is known

    @property
    def document(self) -> Document:
        document = self.disk.document
        assert document is not None, "a story begins with one"  # noqa: S101 - nothing removes it
        return document

    def some_run(self, *states: RunState) -> str | None:
        those = [run.id for run in self.document.runs.values() if run.state in states]
        return self.whims.one_of(those) if those else None

    # What must hold

    def _check(self) -> None:
        if self.world.wrongs:
            raise Wrong(self.world.wrongs[0])
        if self.document is self._checked:
            return
        self._checked = self.document
        found = [each for each in violations(self.document) if each.id not in AT_REST]
        if found:
            raise Wrong(f"invariant {found[0].id} of {found[0].subject}: {found[0].what}")

    def rest(self) -> None:
        """Nothing goes wrong for a while, and time passes until all is quiet."""
        self.whims.tell("-- rest")
        self.whims.calm = True
        if self.world.nature.key_ttl_ms is not None and self.set_back:
            # While the clock is behind the document, no key counts as remembered, and little comes to an end.
            self.whims.tell("the clock is set right")
            self.clock.jump(self.set_back)
            self.set_back = 0
            self.world.jumped(0)
        try:
            self.settle()
            wrong = judging.at_rest(self)
            if wrong is not None:
                raise Wrong(wrong)
        finally:
            self.whims.calm = False

    def settle(self) -> None:
        """Reconcile until nothing changes any more, however long that takes."""
        seat = self.newcomer("keeper")
        policy, since = self.policy, self.clock.monotonic()
        patience = max(
            policy.grace_ms + 5_000,
            policy.idle_ms,
            policy.idle_release_ms if policy.release is Release.PROOF else 0,
            policy.cooldown_ms,
            policy.breaker.dwell_ms,
            policy.send.cap_ms,
        )
        for _ in range(600):
            before = self.document.revision
            self.act(seat, "reconciles", lambda: self.reconcile(seat))
            self._check()
            changed = self.document.revision != before or self.world.is_busy()
            since = self.clock.monotonic() if changed else since
            now = self.clock.now_ms()
            due = next_due(self.document, policy, now)
            # After the clock went back something may be due in a time that is longer than any wait: that is over.
            if self.clock.monotonic() - since > 1.3 * patience / 1000 and (due is None or due - now > patience):
                return
            times = [] if due is None else [(due - now) / 1000]
            self.clock.advance(max(0.05, min((patience / 2_000, *times, *self.world.moments()))))
        raise Wrong(f"it does not come to rest: {self.document.events[-1]}")

    def end(self) -> None:
        """People settle what only they can; then every run has ended, and nothing is left that costs money."""
        self.whims.tell("-- end")
        self.whims.calm = True
        wrong = judging.at_end(self)
        if wrong is not None:
            raise Wrong(wrong)


def _first_document(clock: FakeClock) -> Document:
    draft = Draft(new_document("simulated", LINEAGE), now=clock.now_ms(), command="init")
    draft.event("fleet", INITIALISED, key=LINEAGE)
    return apply_edit(draft.document, draft.edit())
