"""An entry of docs/recovery.md put to the test: what it shows is seen, and all that it types is typed, as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import durable
from tests.behaviour.provider_program import Program, wait_until
from tests.docs.runbook import Entry, arguments, entries, filled, missing


class Book:
    """One entry beside a fleet. `values` fill in its placeholders."""

    def __init__(self, controller: Controller, entry: Entry, **values: object) -> None:
        self.controller = controller
        self.entry = entry
        self.values = values
        self._left = {*entry.types, *entry.refused}

    def sees(self, *, live: bool = False) -> str:
        """Status, in text, shows every line that the entry says; its text."""
        text = self.controller.run("status", *(["--live"] if live else []), check=True).stdout
        assert missing(text, self.entry, **self.values) == [], text
        return text

    def explains(self, slot: int, says: str, *, live: bool = False) -> None:
        """`explain` says so too, and tells nobody to type what the entry does not."""
        found = self.controller.json("explain", f"slot:{slot}", *(["--live"] if live else []))
        assert says in " ".join(found["because"]), found["because"]
        typed = {filled(line, **{**self.values, "N": slot}) for line in self.entry.allows}
        assert {filled(line) for line in found["next"]} <= typed, found["next"]
        assert found["next"] != [], found

    def types(self, word: str, *, exit: int | None = 0, **values: object) -> Result:  # noqa: A002 - as in Result
        """Type the command of the entry's block that *word* picks out. *exit* None: it may end anyhow."""
        return self._run(self._pick(word, self.entry.types), exit, values)

    def is_refused(self, word: str, says: str, *, exit: int = 3, **values: object) -> None:  # noqa: A002 - as in Result
        """What *word* picks out of what the entry says is refused: it is, in these words, and changes nothing."""
        before = durable(self.controller)
        result = self._run(self._pick(word, self.entry.refused), exit, values)
        assert re.search(says, result.stdout + result.stderr), result
        assert durable(self.controller) == before, f"it was refused, and changed something\n{result}"

    def fails(self, word: str, says: str, *, exit: int, **values: object) -> None:  # noqa: A002 - as in Result
        """As `is_refused`, of a command that may have asked the provider, and noted what it said."""
        result = self._run(self._pick(word, self.entry.refused), exit, values)
        assert re.search(says, result.stdout + result.stderr), result

    def _pick(self, word: str, lines: list[str]) -> str:
        found = [line for line in lines if re.search(word, line)]
        assert len(found) == 1, f"{self.entry.title}: {word} picks {found} of {lines}"
        self._left.discard(found[0])
        return found[0]

    def _run(self, line: str, exit: int | None, values: dict[str, object]) -> Result:  # noqa: A002 - as in Result
        result = self.controller.run(*arguments(line, **{**self.values, **values}))
        assert exit in (None, result.exit), str(result)
        if ">" in line.split():
            (self.controller.home / line.rsplit(maxsplit=1)[-1]).write_text(result.stdout)
            (self.controller.home / line.rsplit(maxsplit=1)[-1]).chmod(0o600)
        return result

    def is_done(self) -> None:
        """The page has nothing that was not typed; the document is sound, and the fleet goes on."""
        assert self._left == set(), f"{self.entry.title}: never typed"
        assert self.controller.run("fsck").stdout.endswith("clean\n")
        for slot in (1, 2):
            story = self.controller.json("explain", f"slot:{slot}")["story"]
            assert story["disagreements"] == [], story
        self.controller.run("submit", "--id", "after", "--", "true", check=True)
        wait_until(lambda: self.becomes("after") == "succeeded", "the run after all this")

    def becomes(self, run: str) -> str:
        """The run's state after one reconcile more."""
        self.controller.run("reconcile", "--apply")
        return str(self.controller.json("show", run)["run"]["state"])

    def worker(self, slot: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = self.controller.json("show", f"slot:{slot}")["slot"]["worker"] or {}
        return found

    def until(self, state: str | None, slot: int = 1) -> None:
        """Reconcile until the slot's worker is in that state; None: until it is free."""

        def there() -> bool:
            self.controller.run("reconcile", "--apply")
            return bool(self.worker(slot).get("state") == state)

        wait_until(there, f"slot {slot} {state}")


@contextmanager
def book(controller: Controller, name: str, **values: object) -> Iterator[Book]:
    """The entry that links name so; at the end the fleet is as it should be, and all of the entry was typed."""
    opened = Book(controller, entries()[name], **values)
    yield opened
    opened.is_done()


def program_of(controller: Controller, *fleet: str, slots: int = 1) -> Program:
    """A fleet of the test's provider program, which notices soon what is not there, with these options."""
    program = Program(controller, slots=slots)
    controller.configure("fleet", 'grace = "50ms"', *fleet)
    controller.configure("provider.breaker", "failures = 1000")
    controller.configure("backoff.create", 'initial = "1ms"', 'cap = "1ms"')
    return program


def key_of(program: Program, slot: int = 1) -> str:
    return str(program.pending()[slot]["idempotency_key"])
