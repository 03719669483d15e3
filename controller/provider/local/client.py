"""`LocalProvider`: the provider protocol for workers that are processes on this host.

A look reads each worker's lock and memory; it asks no process, so a supervisor that hangs neither delays it nor looks
gone. A send goes over the socket while the supervisor lives. Once its lock is free, this process speaks for it, under
that lock.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from controller.clock import Clock
from controller.model.action import Action
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory, Seen, SeenWorker
from controller.model.process import Liveness, ProcessIdentity
from controller.model.records import ActionType
from controller.provider.local import offline
from controller.provider.local.exchange import Ask, Interrupted, NoAnswer, NotListening, Op, exchange
from controller.provider.local.fence import DIRECTORY, misdirected, other_data, refusal, seen
from controller.provider.local.lock import try_lock
from controller.provider.local.memory import Memory, MemoryCorrupt
from controller.provider.local.places import (
    PID,
    Places,
    WorkerFile,
    is_worker_name,
    make_worker_directory,
    read_worker,
    remove_worker_directory,
    write_worker,
)
from controller.provider.local.spawn import last_error, spawn
from controller.provider.local.watch import Watches
from controller.provider.process import end_group, liveness
from controller.provider.protocol import (
    Description,
    Done,
    News,
    NotSent,
    Outcome,
    Pending,
    Register,
    Rejected,
    Unknown,
)

_PAUSE: Final = 0.02
_SOON_MS: Final = 100


class LocalProvider:
    """Workers of one fleet and lineage under *state_dir*.

    `deadline`: seconds that one exchange with a supervisor, or the start of one, may take. `patience`: seconds to
    wait for a cancel or a deallocate to be done before it is `pending`. `grace`: seconds between TERM and KILL in a
    deallocate. `environment` is the whole environment of supervisors, and what the environment of steps starts from.
    """

    kind: str = "local"
    registers: bool = False

    def __init__(
        self,
        state_dir: Path,
        *,
        fleet: str,
        lineage: str,
        clock: Clock,
        environment: Mapping[str, str],
        deadline: float = 10.0,
        patience: float = 1.0,
        grace: float = 5.0,
        python: str = sys.executable,
    ) -> None:
        self._state_dir = os.path.abspath(state_dir)
        self._places = Places(self._state_dir)
        self._fleet = fleet
        self._lineage = lineage
        self._clock = clock
        self._environment = dict(environment)
        self._deadline = deadline
        self._patience_ms = round(patience * 1000)
        self._grace_ms = round(grace * 1000)
        self._python = python
        self._interrupt, self._interrupt_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._guard = threading.Lock()
        self._memories: dict[str, Memory] = {}
        self._unreaped: list[int] = []
        self._watches = Watches(self._places.workers, self._interrupt)

    def describe(self) -> Description:
        return Description("local", "1", tuple(ActionType), key_ttl_ms=None, wait=True)

    def wait(self, seconds: float) -> News:
        return self._watches.wait(seconds)

    def interrupt(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._interrupt_end, b"i")

    def close(self) -> None:
        """Let go of every descriptor. Workers go on."""
        self._unreaped = [pid for pid in self._unreaped if not _reap(pid, os.WNOHANG)]
        self._watches.close()
        os.close(self._interrupt)
        os.close(self._interrupt_end)

    # Looks

    def inventory(self) -> Inventory:
        """Every worker, from its lock and its memory. One that cannot be read hides no other."""
        with self._guard:
            try:
                names = sorted(name for name in os.listdir(self._places.workers) if is_worker_name(name))
            except FileNotFoundError:
                names = []
            except OSError as error:
                raise ProviderFailed(
                    f"cannot list the workers: {error.strerror}",
                    where=self._places.workers,
                    next="mend the directory's mode or place; no slot changed",
                ) from error
            self._memories = {name: self._memories.get(name) or self._memory(name) for name in names}
            workers: list[SeenWorker] = []
            unreadable: list[int] = []
            troubles: list[str] = []
            for name in names:
                try:
                    worker = self._see(name)
                except (OSError, msgspec.MsgspecError, MemoryCorrupt) as error:
                    if os.path.lexists(os.path.join(self._places.workers, name)):
                        unreadable.append(int(name.partition("-")[0]))
                        troubles.append(f"worker {name} cannot be read: {error}")
                else:
                    workers += [worker] if worker is not None else []
            return Inventory(True, tuple(workers), tuple(unreadable), tuple(troubles))

    def _memory(self, name: str) -> Memory:
        return Memory(os.path.join(self._places.workers, name))

    def _see(self, name: str) -> SeenWorker | None:
        """The worker; None when it belongs to another fleet. Raises when nothing can be said of it."""
        directory = os.path.join(self._places.workers, name)
        worker = read_worker(directory)
        if (worker.fleet, worker.lineage, worker.id) != (self._fleet, self._lineage, name):
            return None
        memory = self._memories[name]
        with _held(directory) as lock:
            memory.refresh()
            if lock is None:
                return seen(memory, worker, Seen.READY if memory.up == worker.generation else Seen.CREATING)
            if not offline.recover(memory, self._clock):
                raise OSError("it is gone, and a process of one of its steps cannot be ended, nor proven gone")
            return seen(memory, worker, offline.state_of(memory, worker))

    # Sends

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:  # noqa: ARG002 - no process to register
        self._unreaped = [pid for pid in self._unreaped if not _reap(pid, os.WNOHANG)]
        try:
            directory = self._places.worker(action.slot, action.assignment)
        except ValueError as error:
            return Rejected(str(error))
        try:
            if action.type is ActionType.CREATE:
                return self._create(directory, action)
            return self._send(directory, action, raw)
        except Interrupted:
            return Unknown("interrupted")
        except NoAnswer as error:
            return Unknown(str(error))
        except MemoryCorrupt as error:
            return Unknown(f"the worker's memory is damaged: {error}")
        except (OSError, msgspec.MsgspecError) as error:
            return Unknown(f"the worker's directory cannot be used: {error}")

    def _send(self, directory: str, action: Action, raw: Raw) -> Outcome:
        ask = Ask(Op.MUTATE, raw, self._patience_ms, self._grace_ms)
        for _ in self._tries():
            if not os.path.lexists(directory):
                return _already_gone(directory, action)
            with _held(directory) as lock:
                if lock is not None:
                    memory = Memory(directory)
                    memory.refresh()
                    return offline.mutate(directory, read_worker(directory), memory, action, self._clock)
            try:
                outcome = exchange(directory, ask, self._deadline + self._patience_ms / 1000, self._interrupt)
            except NotListening:
                self._pause()
                continue
            except NoAnswer:
                if action.type is not ActionType.DEALLOCATE or not self._end_supervisor(directory, action):
                    raise
                continue
            if action.type is ActionType.DEALLOCATE and isinstance(outcome, Done):
                return self._stopped(directory, outcome)
            return outcome
        if action.type is ActionType.DEALLOCATE and self._end_supervisor(directory, action):
            return Pending(_SOON_MS, "its supervisor took no request and was ended")
        return Unknown("somebody holds the worker's lock, and nobody listens on its socket")

    def _stopped(self, directory: str, outcome: Done) -> Outcome:
        """The supervisor said that it is done; it is once its lock is free."""
        for _ in self._tries():
            with _held(directory) as lock:
                if lock is not None:
                    return outcome
            self._pause()
        return Pending(_SOON_MS, "its supervisor is still ending")

    def _end_supervisor(self, directory: str, action: Action) -> bool:
        """End a supervisor that no longer answers, if it provably is the one that wrote down who it is.

        It cannot say any more whether *action* is meant for it, so that is asked here, after its identity was read:
        one of a later generation than *action* names is left alone.
        """
        memory = Memory(directory)
        try:
            with open(os.path.join(directory, PID), "rb") as file:
                supervisor = msgspec.json.decode(file.read(), type=ProcessIdentity)
            memory.refresh()
            if refusal(memory, read_worker(directory), action) is not None:
                return False
        except (OSError, msgspec.MsgspecError, MemoryCorrupt):
            return False
        return liveness(supervisor) is Liveness.ALIVE and end_group(supervisor, self._clock)

    # Create

    def _create(self, directory: str, action: Action) -> Outcome:
        if os.stat(self._state_dir).st_uid != os.geteuid():
            return NotSent(f"workers run as the owner of {self._state_dir}, who is somebody else")
        if (other := self._other_in_slot(action)) is not None:
            return Rejected(f"slot {action.slot} has another worker, {other}")
        if not os.path.lexists(directory):
            if DIRECTORY in action.resources:
                return Rejected("the directory that it is to be made for is not there")
            make_worker_directory(directory, self._new_worker(action))
        for _ in self._tries():
            with _held(directory) as lock:
                if lock is not None:
                    return self._create_held(directory, action, lock)
            worker = read_worker(directory)
            if (no := _against(worker, action)) is not None:
                return no
            try:
                outcome = exchange(directory, Ask(Op.HELLO), self._deadline, self._interrupt)
            except NotListening:
                # It starts, or has just ended; or whoever looks at one that is gone holds its lock for a moment.
                self._pause()
                continue
            found = outcome.worker.generation if isinstance(outcome, Done) and outcome.worker else action.generation
            if found == action.generation:
                return outcome
            if found == worker.generation:
                return Rejected(f"generation {found} still runs; deallocate it first")
        return Unknown("the worker's supervisor is still starting")

    def _other_in_slot(self, action: Action) -> str | None:
        with suppress(FileNotFoundError):
            for name in os.listdir(self._places.workers):
                slot, _, assignment = name.partition("-")
                if slot == str(action.slot) and assignment != action.assignment:
                    with suppress(OSError, msgspec.MsgspecError):
                        if read_worker(os.path.join(self._places.workers, name)).lineage == self._lineage:
                            return assignment
        return None

    def _create_held(self, directory: str, action: Action, lock: int) -> Outcome:
        """Finish the create that made this generation, or make the next one: nobody lives here, since we hold *lock*.

        What the generation before left is ended first, and the file that names the new one is put in place at once:
        whenever this dies, the same key finds either that the new generation is not there yet or that it made it.
        """
        worker = read_worker(directory)
        if (no := _against(worker, action)) is not None:
            return no
        memory = Memory(directory)
        memory.refresh()
        if not offline.recover(memory, self._clock):
            return Unknown("a process of one of its steps could not be ended", process_lives=True)
        if action.generation > worker.generation:
            worker = replace(self._new_worker(action), immutable_id=worker.immutable_id)
            write_worker(directory, worker)
        if memory.dark == worker.generation or (memory.up == worker.generation and memory.used):
            return Done(worker=seen(memory, worker, offline.state_of(memory, worker)), reason="created before")
        return self._start(directory, worker, lock)

    def _new_worker(self, action: Action) -> WorkerFile:
        return WorkerFile(
            self._fleet,
            self._lineage,
            action.slot,
            action.assignment,
            action.generation,
            Path("/proc/sys/kernel/random/uuid").read_text().strip(),
            action.idempotency_key,
            self._environment,
        )

    def _start(self, directory: str, worker: WorkerFile, lock: int) -> Outcome:
        pid, ready = spawn(directory, lock, self._python, worker.environment)
        try:
            if not self._readable(ready, self._deadline):
                self._unreaped.append(pid)
                return Unknown("the worker's supervisor is still starting")
            _reap(pid)  # it forks and leaves: it is gone, or about to be
            if os.read(ready, 1):
                return exchange(directory, Ask(Op.HELLO), self._deadline, self._interrupt)
        except Interrupted:
            self._unreaped.append(pid)
            raise
        except NotListening as error:
            return Unknown(f"the worker's supervisor ended at once: {error}")
        finally:
            os.close(ready)
        return Unknown(f"the worker's supervisor could not start: {last_error(directory)}")

    # Waiting

    def _tries(self) -> Iterator[None]:
        yield from [None] * max(1, round(self._deadline / _PAUSE))

    def _pause(self) -> None:
        """Raises Interrupted."""
        self._readable(None, _PAUSE)

    def _readable(self, descriptor: int | None, seconds: float) -> bool:
        """Whether *descriptor* is readable within *seconds*. Raises Interrupted."""
        poll = select.poll()
        for each in (self._interrupt, descriptor):
            if each is not None:
                poll.register(each, select.POLLIN)
        ready = dict(poll.poll(round(seconds * 1000)))
        if self._interrupt in ready:
            raise Interrupted
        return bool(ready)


def _reap(pid: int, options: int = 0) -> bool:
    """Whether that child is no zombie of ours any more. Somebody may have set children to be reaped by the kernel."""
    try:
        return os.waitpid(pid, options)[0] == pid
    except ChildProcessError:
        return True


@contextmanager
def _held(directory: str) -> Iterator[int | None]:
    """The worker's lock, or None while somebody else holds it."""
    lock = try_lock(directory)
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def _against(worker: WorkerFile, action: Action) -> Outcome | None:
    """What stands against a create where *worker* is: None if it made this generation, or may make the next one."""
    is_next = action.generation > worker.generation
    meant = replace(worker, generation=action.generation) if is_next else worker
    if (no := misdirected(meant, action) or other_data(meant, action)) is not None:
        return no
    return None if is_next or worker.key == action.idempotency_key else Rejected("another create made this worker")


def _already_gone(directory: str, action: Action) -> Outcome:
    if action.type is ActionType.EXECUTE:
        return Rejected("there is no such worker")
    if action.type is ActionType.CANCEL:
        return Unknown("there is no such worker")
    remove_worker_directory(directory)  # what an interrupted reset left beside it
    return Done(reason="it was gone already")
