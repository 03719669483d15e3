"""The Store contract, case by case. Every implementation runs all of it; a capability says what a case needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.model.errors import (
    DurabilityFailed,
    FenceBroken,
    InvariantBroken,
    LockBusy,
    LockLost,
    LockReentered,
    NotFound,
    ScopeExceeded,
    SlotBusy,
    StorageFailed,
)
from controller.model.reason import Reason
from controller.model.records import (
    MAX_SLOTS,
    Disowned,
    PendingAction,
    Queue,
    Run,
    RunState,
    Slot,
    Step,
)
from controller.store.protocol import Loaded, Part, Scope, Store
from tests.store import kit

Make = Callable[[], Store]


class StoreContract:
    """Implementations give `make`: every call another store over one and the same document, at revision 1."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Make) -> Store:
        return make()

    def break_at(self, point: str, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
        """From now on the disk fails at *point*: "write" (of a commit's line) or "written" (its sync)."""
        raise NotImplementedError

    def mend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raise NotImplementedError

    # reading

    def test_a_new_fleet_is_at_revision_1_and_history_says_so(self, store: Store) -> None:
        snapshot = store.read()
        assert snapshot.document.revision == 1
        assert not snapshot.edited
        assert not snapshot.legacy
        assert snapshot.history_revision == 1
        assert [event.event for event in store.history()] == ["initialised"]

    def test_a_reader_sees_what_another_store_committed(self, make: Make) -> None:
        reader, writer = make(), make()
        assert reader.read().document.revision == 1
        kit.submit(writer, "r-1")
        assert set(reader.read().document.runs) == {"r-1"}
        kit.submit(writer, "r-2")
        assert set(reader.read().document.runs) == {"r-1", "r-2"}

    def test_reading_goes_on_while_the_document_is_held(self, make: Make) -> None:
        reader = make()
        with make().hold(1) as hold:
            kit.submit_in(hold, "r-1")
            assert set(reader.read().document.runs) == {"r-1"}
            assert len(reader.history()) == 2

    # commits

    def test_a_commit_raises_the_revision_by_one_and_returns_what_is_then_read(self, make: Make) -> None:
        committed = kit.submit(make(), "r-1", "r-2")
        assert committed.revision == 2
        assert make().read().document == committed

    def test_a_commit_numbers_its_events_and_history_has_them(self, make: Make) -> None:
        kit.submit(make(), "r-1", "r-2")
        found = [(event.revision, event.n, event.subject) for event in make().history()]
        assert found == [(1, 1, "fleet"), (2, 1, "run:r-1"), (2, 2, "run:r-2")]
        assert [event.n for event in make().history("run:r-2")] == [2]
        assert make().history("run:nobody") == ()

    def test_one_hold_can_load_and_commit_again_and_again(self, store: Store) -> None:
        with store.hold(1) as hold:
            for number in range(1, 6):
                assert kit.submit_in(hold, f"r-{number}").revision == number + 1
        assert len(store.read().document.runs) == 5

    def test_a_record_can_be_removed(self, store: Store) -> None:
        kit.submit(store, "r-1", "r-2")
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            draft.runs.remove("r-1")
            draft.event("run:r-1", "discarded")
            hold.commit(loaded, draft.edit())
        assert set(store.read().document.runs) == {"r-2"}

    def test_an_edit_without_events_is_refused(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            with pytest.raises(InvariantBroken, match="no event"):
                hold.commit(loaded, kit.draft(loaded.document).edit())
        assert store.read().document.revision == 1

    # the fence

    def test_a_document_that_load_did_not_make_is_refused(self, store: Store) -> None:
        with store.hold(1) as hold:
            forged = Loaded(hold.load().document)
            with pytest.raises(FenceBroken):
                hold.commit(forged, kit.submitting(forged.document, "r-1"))
        assert store.read().document.revision == 1

    def test_a_document_loaded_in_another_hold_is_refused(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
        with store.hold(1) as hold, pytest.raises(FenceBroken):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))

    def test_a_loaded_document_serves_one_commit(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
            with pytest.raises(FenceBroken):
                hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
        assert set(store.read().document.runs) == {"r-1"}

    def test_a_refused_commit_leaves_the_loaded_document_good(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            with pytest.raises(InvariantBroken):
                hold.commit(loaded, kit.draft(loaded.document).edit())
            assert hold.commit(loaded, kit.submitting(loaded.document, "r-1")).revision == 2

    def test_a_hold_that_is_over_loads_and_commits_nothing(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
        with pytest.raises(LockLost):
            hold.load()
        with pytest.raises(LockLost):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
        assert store.read().document.revision == 1

    # the document lock

    def test_the_same_thread_cannot_hold_twice(self, make: Make) -> None:
        store = make()
        with store.hold(1):
            with pytest.raises(LockReentered), store.hold(0):
                pass
            with pytest.raises(LockReentered), make().hold(0):
                pass
        kit.submit(store, "r-1")

    def test_another_thread_waits_and_is_told_who_holds_it(self, make: Make) -> None:
        refusals: list[LockBusy] = []

        def try_it() -> None:
            try:
                kit.submit(make(), "r-1", timeout=0.02)
            except LockBusy as busy:
                refusals.append(busy)

        with make().hold(1):
            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()
        assert len(refusals) == 1
        assert f"pid {kit.ME.pid} (test)" in refusals[0].what
        assert make().read().document.revision == 1

    def test_another_thread_gets_the_document_once_it_is_free(self, make: Make) -> None:
        waiter = threading.Thread(target=kit.submit, args=(make(), "r-2"))
        with make().hold(1) as hold:
            waiter.start()
            kit.submit_in(hold, "r-1")
        waiter.join()
        assert set(make().read().document.runs) == {"r-1", "r-2"}

    def test_a_hold_that_raises_frees_the_document(self, make: Make) -> None:
        with pytest.raises(ZeroDivisionError), make().hold(1):
            raise ZeroDivisionError
        kit.submit(make(), "r-1", timeout=0)

    def test_threads_that_submit_at_once_lose_nothing(self, make: Make) -> None:
        def work(number: int) -> None:
            store = make()
            for turn in range(5):
                kit.submit(store, f"r-{number}-{turn}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        document = make().read().document
        assert len(document.runs) == 20
        assert document.revision == 21
        assert len(make().history()) == 21

    # compare-and-swap is shown by each implementation: only it can move the document under a hold

    # scope

    def test_an_apply_may_touch_its_slot_its_run_and_counters(self, store: Store) -> None:
        kit.submit(store, "r-1")
        with store.hold(1) as hold:
            loaded = hold.load()
            run, worker = kit.held_run("r-1", 4)
            draft = kit.draft(loaded.document)
            draft.runs.put("r-1", replace(run, sequence=1))
            draft.workers.put(4, worker)
            draft.pending.put(4, kit.parked(4, serial=draft.count("serial")))
            draft.event("slot:4", "applied")
            hold.commit(loaded, draft.edit(), scope=Scope(4, "r-1"))
        assert store.read().document.runs["r-1"].state is RunState.RUNNING

    @pytest.mark.parametrize("what", ["run", "worker", "pending", "slot", "queue", "disowned", "trouble", "draining"])
    def test_an_apply_may_touch_nothing_else(self, store: Store, what: str) -> None:
        kit.submit(store, "r-1", "r-2")
        before = store.read().document
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            draft.event("slot:1", "applied")
            match what:
                case "run":
                    draft.runs.put("r-2", replace(loaded.document.runs["r-2"], last_error="x"))
                case "worker":
                    draft.workers.put(2, kit.worker(2))
                case "pending":
                    draft.pending.put(2, kit.parked(2, serial=draft.count("serial")))
                case "slot":
                    draft.slots.put(2, Slot(cordoned=True))
                case "queue":
                    draft.queues.put("fleet", Queue(paused=True))
                case "disowned":
                    draft.disowned.put("k", Disowned(Raw(b"{}"), 1, Reason.UNKNOWN))
                case "trouble":
                    draft.trouble(Reason.UNKNOWN, "x")
                case _:
                    draft.draining = True
            with pytest.raises(ScopeExceeded):
                hold.commit(loaded, draft.edit(), scope=Scope(1, "r-1"))
        assert store.read().document == before
        assert len(store.history()) == 3

    def test_each_part_of_a_commit_may_touch_what_its_own_scope_allows(self, store: Store) -> None:
        kit.submit(store, "r-1")
        before = store.read().document
        with store.hold(1) as hold:
            loaded = hold.load()
            edits = []
            for slot in (1, 2):
                draft = kit.draft(loaded.document)
                draft.slots.put(slot, Slot(cordoned=True))
                draft.event(f"slot:{slot}", "applied")
                edits.append(draft.edit())
            fitting, beyond = Part(edits[0], Scope(1, None)), Part(edits[1], Scope(3, None))
            with pytest.raises(ScopeExceeded, match=r"slots\.2"):
                hold.commit(loaded, kit.saying(loaded.document), parts=(fitting, beyond))
            assert store.read().document == before
            hold.commit(loaded, kit.saying(loaded.document), parts=(fitting,))
        assert list(store.read().document.slots) == [1]

    def test_an_apply_without_a_run_may_touch_no_run(self, store: Store) -> None:
        kit.submit(store, "r-1")
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            draft.runs.put("r-1", replace(loaded.document.runs["r-1"], last_error="x"))
            draft.event("run:r-1", "noted")
            with pytest.raises(ScopeExceeded, match=r"runs\.r-1"):
                hold.commit(loaded, draft.edit(), scope=Scope(1, None))

    # invariants

    def test_a_new_violation_is_refused_and_named(self, store: Store) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            draft.runs.put("r-1", Run("r-1", "fleet", draft.count("sequence"), 1, (), RunState.FAILED))
            draft.event("run:r-1", "failed")
            with pytest.raises(InvariantBroken, match="run-reason"):
                hold.commit(loaded, draft.edit())
        assert store.read().document.revision == 1
        assert len(store.history()) == 1

    def test_a_counter_is_never_lowered(self, store: Store) -> None:
        kit.submit(store, "r-1")
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            draft.counters = replace(draft.counters, run=0)
            draft.event("fleet", "noted")
            with pytest.raises(InvariantBroken, match="counter-lowered"):
                hold.commit(loaded, draft.edit())

    def test_a_token_is_never_lowered(self, store: Store) -> None:
        kit.submit(store, "r-1")
        for attempts, refused in ((3, False), (2, True)):
            with store.hold(1) as hold:
                loaded = hold.load()
                draft = kit.draft(loaded.document)
                draft.runs.put("r-1", replace(loaded.document.runs["r-1"], attempts=attempts))
                draft.event("run:r-1", "noted")
                if refused:
                    with pytest.raises(InvariantBroken, match="token-lowered"):
                        hold.commit(loaded, draft.edit())
                else:
                    hold.commit(loaded, draft.edit())

    @pytest.mark.parametrize(
        "payload",
        [b"[" * 300 + b"]" * 300, b"18446744073709551616", b'{"a":1,"a":2}', b'"\\ud800"', b"1e999", b"NaN", b"{"],
    )
    def test_what_could_not_be_read_again_is_refused(self, store: Store, payload: bytes) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            run = Run("r-1", "q", draft.count("sequence"), 1, (Step("main", ("true",)),), payload=Raw(payload))
            draft.runs.put("r-1", run)
            draft.event("run:r-1", "submitted")
            with pytest.raises(InvariantBroken, match="could not be read again"):
                hold.commit(loaded, draft.edit())
            assert kit.submit_in(hold, "r-1").revision == 2

    @pytest.mark.parametrize("field", [{"created_at": 2**64}, {"queue": "\ud800"}, {"attempts": 1.5}, {"id": None}])
    def test_a_value_of_the_wrong_kind_is_refused(self, store: Store, field: dict[str, Any]) -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            run = Run("r-1", "q", draft.count("sequence"), 1, (Step("main", ("true",)),))
            draft.runs.put("r-1", replace(run, **field))
            draft.event("run:r-1", "submitted")
            with pytest.raises(InvariantBroken, match="could not be read again"):
                hold.commit(loaded, draft.edit())
        assert store.read().document.revision == 1

    def test_a_pending_action_keeps_its_bytes(self, make: Make) -> None:
        with make().hold(1) as hold:
            loaded = hold.load()
            edit = kit.parking(loaded.document, 3)
            hold.commit(loaded, edit)
        parked = edit.pending_actions[3]
        assert isinstance(parked, PendingAction)
        assert bytes(make().read().document.pending_actions[3].action) == bytes(parked.action)
        assert make().read().document.slots[3].changed == 2

    # disks that fail

    def test_a_line_that_cannot_be_written_leaves_the_old_revision(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make()
        with store.hold(1) as hold:
            loaded = hold.load()
            self.break_at("write", monkeypatch, make)
            with pytest.raises(StorageFailed):
                hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
            self.mend(monkeypatch)
            assert store.read().document.revision == 1
            assert len(store.history()) == 1
            assert kit.submit_in(hold, "r-2").revision == 2
        assert set(make().read().document.runs) == {"r-2"}

    def test_a_line_that_could_not_be_synced_is_unknown_until_it_is_loaded_again(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = make()
        with store.hold(1) as hold:
            loaded = hold.load()
            self.break_at("written", monkeypatch, make)
            with pytest.raises(DurabilityFailed):
                hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
            self.mend(monkeypatch)
            with pytest.raises(FenceBroken):
                hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
            assert hold.load().document.revision == 1
            assert kit.submit_in(hold, "r-3").revision == 2
        assert [event.subject for event in make().history()] == ["fleet", "run:r-3"]
        assert set(make().read().document.runs) == {"r-3"}

    # slot locks

    def test_a_slot_is_held_by_one_at_a_time_and_says_by_whom(self, make: Make) -> None:
        with make().hold_slot(3):
            with pytest.raises(SlotBusy, match=rf"pid {kit.ME.pid} \(test\)"), make().hold_slot(3):
                pass
            with make().hold_slot(4):
                pass
        with make().hold_slot(3):
            pass

    def test_two_threads_exclude_each_other_from_a_slot(self, make: Make) -> None:
        store = make()
        found: list[str] = []

        def try_it() -> None:
            try:
                with store.hold_slot(3):
                    found.append("held")
            except SlotBusy:
                found.append("busy")

        with store.hold_slot(3):
            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()
        assert found == ["busy"]

    def test_a_slot_can_be_held_while_the_document_is_and_the_other_way_round(self, make: Make) -> None:
        store = make()
        with store.hold_slot(3):
            kit.submit(store, "r-1")
        with store.hold(1), store.hold_slot(3):
            pass

    def test_the_note_names_controller_and_provider(self, make: Make) -> None:
        store = make()
        assert store.slot_note(3).provider is None
        with store.hold_slot(3) as held:
            assert store.slot_note(3).controller == kit.ME
            held.register(kit.OTHER, 77, "key")
            note = make().slot_note(3)
            assert (note.provider, note.deadline_at, note.key) == (kit.OTHER, 77, "key")
            held.clear()
            assert make().slot_note(3).provider is None
        assert make().slot_note(3).controller is None

    def test_a_provider_that_nobody_cleared_stays_in_the_note_of_the_next_holder(self, make: Make) -> None:
        with make().hold_slot(3) as held:
            held.register(kit.OTHER, 77, "key")
        with make().hold_slot(3):
            note = make().slot_note(3)
            assert (note.controller, note.provider, note.key) == (kit.ME, kit.OTHER, "key")

    def test_a_slot_hold_that_is_over_registers_nothing(self, store: Store) -> None:
        with store.hold_slot(3) as held:
            pass
        with pytest.raises(LockLost):
            held.register(kit.OTHER, 77, "key")
        assert store.slot_note(3).provider is None

    @pytest.mark.parametrize("slot", [0, -1, MAX_SLOTS + 1])
    def test_there_are_no_slots_out_of_bounds(self, store: Store, slot: int) -> None:
        with pytest.raises(NotFound), store.hold_slot(slot):
            pass

    # refusals

    def test_refusals_are_kept_newest_last_and_change_nothing(self, make: Make) -> None:
        store = make()
        assert store.refusals(5) == ()
        for number in range(3):
            store.note_refusal("complete", "stale_lease", f"token {number}", "run:r-1")
        assert [refusal["what"] for refusal in make().refusals(2)] == ["token 1", "token 2"]
        assert store.read().document.revision == 1
        assert len(store.history()) == 1

    def test_refusals_are_bounded(self, store: Store) -> None:
        for number in range(450):
            store.note_refusal("claim", "not_available", str(number), "run:r-1")
        kept = store.refusals(10_000)
        assert len(kept) <= 400
        assert kept[-1]["what"] == "449"
