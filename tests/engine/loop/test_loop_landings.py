"""A sender that has ended wakes the loop, unless all that it has to tell is known."""

from __future__ import annotations

from concurrent.futures import Future

from controller.engine.pending import Sent
from tests.engine.fleet import Fleet
from tests.engine.serving import Serving


def flight(error: Exception | None = None) -> Future[Sent | None]:
    made: Future[Sent | None] = Future()
    if error is None:
        made.set_result(None)
    else:
        made.set_exception(error)
    return made


def test_a_sender_wakes_the_loop_unless_all_that_it_has_to_tell_is_known(fleet: Fleet) -> None:
    loop = Serving(fleet).loop
    loop._followed.add("known")
    loop._land("known", flight())
    assert loop._inbox.empty()
    loop._land("other", flight())
    assert not loop._inbox.empty()


def test_one_that_fails_wakes_it_though_its_answer_is_known(fleet: Fleet) -> None:
    loop = Serving(fleet).loop
    loop._followed.add("known")
    loop._land("known", flight(OSError("no")))
    assert not loop._inbox.empty()


def test_one_that_lands_while_it_ends_wakes_it(fleet: Fleet) -> None:
    loop = Serving(fleet).loop
    loop._followed.add("known")
    loop.leave()
    loop._land("known", flight())
    assert not loop._inbox.empty()
