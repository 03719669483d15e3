"""State directories whose document and history were mutated: whoever reads them answers, or refuses, and changes none.

Unsealed: bytes were changed and no digest with them. Then what is read is a document that was committed, or it counts
as edited, or as forked. Resealed: every digest is right, as whoever knows the format could make it; then it is typed,
comes back once it is written, and breaks no rule that `fsck` does not tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random

from controller.engine.fsck import Verdict, check
from controller.engine.status import build, flights_of
from controller.model.edit import MAPS
from controller.model.errors import ControllerError
from controller.model.invariants import AT_REST, violations
from controller.model.policy import Policy
from controller.model.records import Document
from controller.store import backups, codec
from controller.store.file import FileStore
from controller.store.protocol import Snapshot
from controller.store.restore import beside, restore
from tests.fuzz import mutate
from tests.fuzz.mutate import Members
from tests.fuzz.target import Case, Target, answered, must
from tests.fuzz.worlds import NAMES, Place, good_lines, opened, world
from tests.store import kit

DOCUMENT = "controller.json"
SOME = (*(name for name in NAMES if name != "large"), *NAMES)
"""Worlds to choose from: the large one takes longest."""
UNSEALED = "schema1"
"""Schema 1 had no digest: nobody can tell who wrote it."""


# --- Making -----------------------------------------------------------------------------------------------------------


def unsealed(chance: Random) -> Case:
    """Some file with some bytes changed, and no digest."""
    place = world(chance.choice(SOME))
    name = chance.choice((DOCUMENT, *place.chain, *place.chain[-1:]))
    data = place.files[name]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        how = chance.choice(
            (mutate.scratched, mutate.lines_moved, mutate.lines_moved if name != DOCUMENT else mutate.reshaped)
        )
        data = how(data, chance)
    return Case(place.name, f"{name}: bytes", {name: data})


def missing(chance: Random) -> Case:
    """Files that are gone, copied over each other, or empty."""
    place = world(chance.choice(SOME))
    changes: dict[str, bytes | None] = {}
    for _ in range(chance.choice((1, 1, 2))):
        name, source = chance.choice((DOCUMENT, *place.chain)), chance.choice((DOCUMENT, *place.chain))
        fresh = chance.choice(
            (name, "journal-0-0.jsonl", "journal-99-0.jsonl", "history-1-3.jsonl", "history.jsonl", "refusals.jsonl")
        )
        changes[fresh] = chance.choice((None, b"", b"\n", b"\0" * 4096, place.files[source]))
    return Case(place.name, f"files: {', '.join(changes)}", changes)


def resealed(chance: Random) -> Case:
    """The document or lines of its history with other content, everything sealed and chained anew."""
    place = world(chance.choice(SOME))
    if not place.chain or chance.randrange(2):
        return Case(place.name, "document resealed", {DOCUMENT: resealed_document(place.files[DOCUMENT], chance)})
    number = chance.randrange(len(place.chain))
    files: dict[str, bytes | None] = {}
    digest, first = "", ""
    for at, name in enumerate(place.chain):
        if name == "history.jsonl":
            data = place.files[name]
            if at == number:
                lines = data.splitlines()
                line = chance.randrange(len(lines))
                lines[line] = mutate.reshaped(lines[line], chance)
                data = b"\n".join(lines) + b"\n"
            files[name], digest = data, hashlib.sha256(data).hexdigest()
            continue
        lines = place.files[name].rstrip(b"\0").splitlines(keepends=True)
        torn = lines.pop() if not lines[-1].endswith(b"\n") else b""
        where = chance.randrange(len(lines)) if at == number else -1
        many = chance.choice((1, 1, 2))

        def change(n: int, members: Members, where: int = where, many: int = many) -> Members | None:
            for _ in range(many if n == where else 0):
                if chance.randrange(30) == 0:
                    return None
                members = mutate.changed(members, chance)
            return members

        made, digest = mutate.chained(lines, digest, change)
        first = mutate.DIGEST.search(made[0]).group()[11:75].decode() if made else ""  # type: ignore[union-attr]
        files[name] = (
            b"".join(made) + torn + (b"\0" * chance.choice((0, 0, 4096)) if at == len(place.chain) - 1 else b"")
        )
    document = mutate.parsed(place.files[DOCUMENT])
    named = mutate.member(document, "journal")
    if isinstance(named, Members):
        named[:] = [(key, first if key == "digest" else value) for key, value in named]
        files[DOCUMENT] = mutate.document_laid_out(document)
    return Case(place.name, f"{place.chain[number]} resealed", files)


def resealed_document(data: bytes, chance: Random) -> bytes:
    if chance.randrange(6) == 0:
        return mutate.document_sealed(mutate.scratched(data, chance))
    members = mutate.parsed(data)
    for _ in range(chance.choice((1, 1, 2))):
        members = mutate.changed(members, chance)
    return mutate.document_laid_out(members) if isinstance(members, Members) else mutate.document_sealed(data)


# --- Checking ---------------------------------------------------------------------------------------------------------


def check_unsealed(case: Case, home: Path) -> None:
    place = world(case.world)
    snapshot = _read_only(place, case, home / "s")
    if isinstance(snapshot, Snapshot):
        _check_unchanged(place, case, snapshot, home / "s")
    _holding(place, case, home / "held", sealed=False)
    _restoring(place, case, home)


def check_resealed(case: Case, home: Path) -> None:
    place = world(case.world)
    snapshot = _read_only(place, case, home / "s")
    if isinstance(snapshot, Snapshot):
        _check_typed(snapshot.document, "read")
    _holding(place, case, home / "held", sealed=True)
    _restoring(place, case, home)


def _read_only(place: Place, case: Case, directory: Path) -> Snapshot | ControllerError:
    """Whatever takes no lock: each answers or refuses, and afterwards every byte is what it was."""
    place.put(directory, case.files)
    before = bytes_of(directory)
    store = opened(directory)
    snapshot = answered("read", store.read)
    if isinstance(snapshot, Snapshot):
        touched = answered("decode", partial(whole, snapshot.document))
        answered("status", partial(status, store, snapshot))
        if isinstance(touched, ControllerError):  # a record of a large document is judged when it is touched
            snapshot = touched
    for name, ask in (
        ("history", store.history),
        ("history of", lambda: store.history("run:r-1")),
        ("verify", store.past.verify),
        ("end", store.past.end),
        ("since", lambda: store.past.since(None)),
        ("later", lambda: store.past.later(1, "")),
        ("fault", store.history_fault),
        ("leftovers", store.leftovers),
        ("refusals", lambda: store.refusals(5)),
    ):
        answered(name, ask)
    verdict = answered("fsck", lambda: check(opened(directory)))
    if isinstance(snapshot, Snapshot) and isinstance(verdict, Verdict):
        found = [each for each in violations(snapshot.document) if each.id not in AT_REST]
        must(not found or bool(verdict.violations), "fsck does not tell what is broken", found)
    must(bytes_of(directory) == before, "a reader changed files", _difference(before, bytes_of(directory)))
    return snapshot


def status(store: FileStore, snapshot: Snapshot) -> object:
    document = snapshot.document
    return build(
        snapshot,
        slots=3,
        flights=flights_of(store, list(document.pending_actions)[:50]),
        refusals=store.refusals(5),
        now=kit.NOW,
        policy=Policy(),
    )


def whole(document: Document) -> int:
    """Touch every record."""
    return sum(len(dict(getattr(document, name).items())) for name in MAPS)


def _check_typed(document: Document, name: str) -> None:
    """What is accepted can be written, and is read again."""
    data = answered(f"{name}, encoded", lambda: codec.encode(document))
    must(isinstance(data, bytes), f"{name}: accepted, and cannot be written", data)
    if isinstance(data, bytes):
        back = answered(f"{name}, written and read", lambda: codec.decode(data, "x"))
        must(isinstance(back, codec.Decoded), f"{name}: accepted, and not read once written", back)


def _check_unchanged(place: Place, case: Case, snapshot: Snapshot, directory: Path) -> None:
    """No silent change: what is read unedited and unforked was committed, and no commit before a torn line is lost."""
    document = snapshot.document
    if snapshot.edited or case.world == UNSEALED:
        return
    known = place.documents.get(document.revision)
    committed = known is not None and _same(known, document)
    must(committed, "accepted as unedited, and it was never committed", document.revision)
    ahead = snapshot.history_revision is not None and snapshot.history_revision > document.revision
    newest = place.chain[-1] if place.chain else ""
    if newest.startswith("journal-") and not ahead and set(case.files) == {newest}:
        data = case.files[newest] or b""
        lines = good_lines(data)
        first = int(newest.split("-")[1])
        last = first + lines - 1
        must(document.revision >= last, "a whole line was not read", f"{document.revision} of {last}")
    store = opened(directory)
    proven = answered("verify", store.past.verify)
    if not isinstance(proven, ControllerError) and not snapshot.legacy:
        told = answered("history", store.history)
        if not isinstance(told, ControllerError):
            wanted = tuple(each for each in place.events if each.revision <= document.revision)
            told = tuple(each for each in told if each.revision <= document.revision)
            must(told == wanted[len(wanted) - len(told) :], "history that is proven was never told", told[-3:])


def _same(one: Document, other: Document) -> bool:
    return all(
        dict(getattr(one, name)) == dict(getattr(other, name))
        if name in MAPS
        else getattr(one, name) == getattr(other, name)
        for name in Document.__struct_fields__
    )


def _holding(place: Place, case: Case, directory: Path, *, sealed: bool) -> None:
    """A hold, a load and a commit: refused, every byte is what it was. Done, the next reader sees it, and nothing that
    was there is lost.
    """
    place.put(directory, case.files)
    before = bytes_of(directory)
    store = opened(directory)
    done: list[Document] = []

    def commit() -> None:
        with store.hold(1) as hold:
            loaded = hold.load()
            document = loaded.document
            if not sealed and case.world != UNSEALED:
                known = place.documents.get(document.revision)
                migrated = any(event.event == "migrated" for event in document.events)
                must(migrated or (known is not None and _same(known, document)), "built upon what was never committed")
            done.append(hold.commit(loaded, kit.saying(document)))

    answer = answered("commit", commit)
    after = bytes_of(directory)
    if not done:
        kept = {
            name: data for name, data in after.items() if name != "controller.lock" and not name.startswith("backup-")
        }
        lost = {name for name, data in before.items() if kept.get(name) != data}
        must(
            not lost or (isinstance(answer, ControllerError) and _swept(before, after)),
            "refused, and files changed",
            _difference(before, after),
        )
        return
    answered("close", store.close)
    seen = answered("read after a commit", opened(directory).read)
    must(isinstance(seen, Snapshot), "committed, and not readable", seen)
    if isinstance(seen, Snapshot):
        must(
            seen.document.revision == done[0].revision and not seen.edited,
            "committed, and not seen",
            seen.document.revision,
        )
        told, wanted = (answered("decode after a commit", partial(whole, each)) for each in (seen.document, done[0]))
        must(isinstance(told, ControllerError) or told == wanted, "committed, and other records are seen")
    for name, data in before.items():
        held = [kept for other, kept in bytes_of(directory).items() if other.startswith(("torn-", "backup-"))]
        gone = after.get(name, b"")
        if name.endswith(".jsonl") and not gone.startswith(data.rstrip(b"\0")) and not sealed:
            tail = data.rstrip(b"\0")[len(_common(data, gone)) :].rstrip(b"\0")
            blank = b"\n" not in data.rstrip(b"\0")[:-1]
            must(
                blank or any((tail and tail in each) or not tail for each in held),
                "what was torn is not kept",
                (name, tail[:200]),
            )


def _common(one: bytes, two: bytes) -> bytes:
    size = min(len(one), len(two))
    low = 0
    while low < size and one[low] == two[low]:
        low += 1
    # A torn line may begin as the next one does.
    return one[: one.rfind(b"\n", 0, low) + 1]


def _swept(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Nothing but what a killed process leaves was removed: journals with an opening alone."""
    for name, data in before.items():
        if after.get(name) != data and not (name not in after and data.rstrip(b"\0").count(b"\n") <= 1):
            return False
    return True


def _restoring(place: Place, case: Case, home: Path) -> None:
    """The document as a backup: judged, and put over what stands there."""
    data = case.files.get(DOCUMENT)
    if data is None:
        return
    file = home / "backup.json"
    file.write_bytes(data)
    held = answered("state verify", lambda: backups.read_backup(file))
    target = home / "restored"
    place.put(target, {})
    before = bytes_of(target)
    store = opened(target)
    if isinstance(held, backups.Held):
        answered("violations", lambda: held.violations)
        answered("beside", lambda: beside(held.document, store))
    must(bytes_of(target) == before, "verify changed files")
    done = answered("restore", lambda: restore(store, file, epoch="e-2", acknowledge=True, timeout=1))
    if isinstance(done, ControllerError):
        lost = {name for name, each in before.items() if bytes_of(target).get(name) != each}
        must(not lost, "a refused restore changed files", lost)
    else:
        seen = answered("read after a restore", opened(target).read)
        must(isinstance(seen, Snapshot), "restored, and not readable", seen)
        verdict = answered("fsck after a restore", lambda: check(opened(target)))
        must(isinstance(verdict, Verdict), "restored, and not judged", verdict)


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.is_file() and path.name != "controller.lock"
    }


def _difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    return ", ".join(sorted(name for name in {*before, *after} if before.get(name) != after.get(name)))


TARGETS = (
    Target("documents", resealed, check_resealed),
    Target("bytes", unsealed, check_unsealed),
    Target("files", missing, check_unsealed),
)
