"""Every code that an answer may carry can be looked up."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import pytest

import controller
from controller.model.codes import ERRORS, Code, Kind, catalogue
from controller.model.errors import ControllerError
from controller.model.reason import EXPLAINED, Reason
from controller.model.refusal import REFUSALS
from controller.model.transition import Why

CODES = catalogue()


def every_error(kind: type[ControllerError] = ControllerError) -> Iterator[type[ControllerError]]:
    """The whole tree, as it is once every module of the program is loaded."""
    if kind is ControllerError:
        for module in pkgutil.walk_packages(controller.__path__, "controller."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    yield kind
    for below in kind.__subclasses__():
        # What a thread is interrupted with is a class of its own under the name of the one that it stands for.
        own = below.__module__.startswith("controller.")
        if own and getattr(sys.modules[below.__module__], below.__name__) is below:
            yield from every_error(below)


def test_no_two_codes_have_one_name() -> None:
    errors = {kind.code for kind in every_error()}
    names = [*map(str, Reason), *map(str, Why), *errors]
    assert len(names) == len(set(names))
    assert set(names) == set(CODES)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_there_as_it_is_explained(reason: Reason) -> None:
    found, explained = CODES[reason], EXPLAINED[reason]
    assert found == Code(reason, Kind.REASON, None, explained.text, explained.why, explained.next)


@pytest.mark.parametrize("why", Why)
def test_every_refusal_of_a_machine_has_words_and_a_next_step(why: Why) -> None:
    assert set(REFUSALS) == set(Why)
    assert (CODES[why].kind, CODES[why].exit) == (Kind.REFUSAL, 3)


def test_every_error_is_there_with_its_exit_code() -> None:
    own = {kind for kind in every_error() if kind.__module__ == "controller.model.errors"}
    assert set(ERRORS) == own
    for kind in every_error():
        assert CODES[kind.code].exit == kind.exit, kind


@pytest.mark.parametrize("code", CODES.values(), ids=str)
def test_a_code_says_what_and_why_and_what_next(code: Code) -> None:
    assert code.text
    assert not code.text.endswith(".")
    assert code.why.endswith(".")
    assert code.next.endswith(".")
    assert "\n" not in f"{code.text}{code.why}{code.next}"


def test_no_two_codes_read_alike() -> None:
    assert len({code.text for code in CODES.values()}) == len(CODES)
