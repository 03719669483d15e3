"""Edits: what a draft tells and keeps apart, and what two edits are as one."""

from __future__ import annotations

from msgspec.structs import replace

from controller.model.edit import Draft, apply_edit, foreseen, joined
from controller.model.reason import Reason
from controller.model.records import Event, Trouble
from tests.model.drafts import NOW, document, draft_of, only_event, run


def drained(*, to: bool | None) -> Draft:
    """A draft with one event that starts or ends a drain; None: it leaves it as it is."""
    draft = draft_of()
    draft.draining = draft.draining if to is None else to
    draft.event("fleet", "test")
    return draft


def test_a_trouble_is_kept_and_told_with_its_slot_its_key_and_its_words() -> None:
    draft = draft_of()
    draft.trouble(Reason.UNKNOWN, "no answer", slot=3, key="k")
    assert draft.edit().troubles == (Trouble(NOW, Reason.UNKNOWN, "no answer", 3, "k"),)
    assert only_event(draft) == Event(
        0, 0, NOW, "test", "slot:3", "trouble", reason=Reason.UNKNOWN, key="k", detail="no answer"
    )


def test_a_trouble_of_no_slot_is_the_fleets() -> None:
    draft = draft_of()
    draft.trouble(Reason.UNKNOWN, "no answer")
    assert draft.edit().troubles == (Trouble(NOW, Reason.UNKNOWN, "no answer"),)
    assert (only_event(draft).subject, only_event(draft).key) == ("fleet", None)


def test_what_an_edit_would_leave_is_foreseen_at_the_documents_own_revision() -> None:
    draft = draft_of(run())
    before = replace(draft.document, revision=7, events=(Event(7, 1, NOW, "test", "fleet", "made"),))
    draft.runs.remove("r-1")
    draft.event("run:r-1", "removed")
    assert foreseen(before, draft.edit()) == replace(before, runs={})


def test_a_section_is_read_as_changed_with_what_is_new_at_its_end() -> None:
    draft = draft_of(run(), replace(run(), id="r-2"), replace(run(), id="r-3"))
    draft.runs.put("r-9", replace(run(), id="r-9"))
    draft.runs.put("r-2", replace(run(), id="r-2", failures=1))
    draft.runs.remove("r-1")
    draft.runs.put("r-8", replace(run(), id="r-8"))
    draft.runs.remove("r-8")
    assert [(name, found.id, found.failures) for name, found in draft.runs.items()] == [
        ("r-2", "r-2", 1),
        ("r-3", "r-3", 0),
        ("r-9", "r-9", 0),
    ]
    assert ("r-1" in draft.runs, "r-8" in draft.runs) == (False, False)
    assert set(draft.runs.changes) == {"r-1", "r-2", "r-9"}


def test_of_two_edits_as_one_the_later_word_on_draining_counts() -> None:
    for first, second, found in ((True, None, True), (None, True, True), (None, None, None)):
        assert joined(drained(to=first).edit(), drained(to=second).edit()).draining is found
    on = joined(drained(to=True).edit(), replace(drained(to=None).edit(), draining=False))
    assert on.draining is False


def test_two_edits_as_one_leave_what_one_after_the_other_leaves() -> None:
    base = document(run())
    first = Draft(base, now=NOW, command="test")
    first.runs.put("r-1", run(failures=1))
    first.count("serial")
    first.trouble(Reason.UNKNOWN, "first")
    after = apply_edit(base, first.edit())
    second = Draft(foreseen(base, first.edit()), now=NOW, command="test")
    second.runs.remove("r-1")
    second.runs.put("r-2", replace(run(), id="r-2"))
    second.trouble(Reason.UNKNOWN, "second")
    apart = apply_edit(after, second.edit())
    once = apply_edit(base, joined(first.edit(), second.edit()))
    told = (*after.events, *apart.events)
    events = tuple(replace(event, revision=after.revision, n=n) for n, event in enumerate(told, 1))
    assert once == replace(apart, revision=after.revision, events=events)
