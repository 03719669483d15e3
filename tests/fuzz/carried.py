"""What people carry about: documents that they edited, and exports. Taken whole, or refused with nothing changed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from controller.engine.fsck import Verdict, check
from controller.model.errors import ControllerError
from controller.model.invariants import AT_REST, violations
from controller.store import exports
from controller.store.accept import Accepted, accept
from controller.store.protocol import Snapshot
from tests.fuzz import mutate
from tests.fuzz.documents import DOCUMENT, SOME, bytes_of, resealed_document, whole
from tests.fuzz.mutate import Members
from tests.fuzz.target import Case, Target, answered, must
from tests.fuzz.worlds import opened, world
from tests.store import kit

# --- Edits by hand ----------------------------------------------------------------------------------------------------


def edited(chance: Random) -> Case:
    """The document as somebody with an editor leaves it: another content, the old digest."""
    place = world(chance.choice(SOME))
    members = mutate.parsed(place.files[DOCUMENT])
    for _ in range(chance.choice((1, 1, 2))):
        members = mutate.changed(members, chance)
    text = mutate.written(members)
    if chance.randrange(4) == 0:
        text = text.replace(',"', chance.choice((', "', ',\n "', ',\t"')))
    return Case(place.name, "document edited", {DOCUMENT: mutate.as_bytes(text)})


def check_edited(case: Case, home: Path) -> None:
    """`state accept`: refused, every byte is what it was. Done, it is read as accepted, and what it was is not lost."""
    place = world(case.world)
    directory = home / "s"
    place.put(directory, case.files)
    before = bytes_of(directory)
    store = opened(directory)
    done = answered("accept", lambda: accept(store, restore_pending=False, timeout=1))
    if not isinstance(done, Accepted):
        after = bytes_of(directory)
        must(all(after.get(name) == data for name, data in before.items()), "refused, and files changed", done)
        return
    seen = answered("read after accept", opened(directory).read)
    must(isinstance(seen, Snapshot) and not seen.edited, "accepted, and not readable", seen)
    if isinstance(seen, Snapshot):
        must(seen.document.revision == done.document.revision, "accepted, and another one is read", seen)
        must(isinstance(answered("decode", lambda: whole(seen.document)), int), "accepted, and not readable whole")
        found = [each for each in violations(seen.document) if each.id not in AT_REST]
        must(not found, "accepted, and it breaks a rule", found)
    must(
        isinstance(answered("fsck after accept", lambda: check(opened(directory))), Verdict), "accepted, and not judged"
    )
    answered("commit after accept", lambda: kit.submit(opened(directory), "after", timeout=1))
    must(isinstance(answered("read again", opened(directory).read), Snapshot), "accepted, committed, and not readable")


# --- Exports ----------------------------------------------------------------------------------------------------------


def export_made(chance: Random) -> Case:
    """An export with one thing changed, with the right digest or without."""
    data = _export()
    if chance.randrange(3) == 0:
        return Case("export", "bytes", {"x.export": mutate.scratched(data, chance)})
    lines = data.splitlines()[:-1]
    at = chance.randrange(len(lines))
    if at == 1 and chance.randrange(3):
        inner = resealed_document(json.loads(lines[1])["document"].encode(), chance)
        lines[1] = mutate.as_bytes(mutate.written(Members([("document", inner.decode("utf-8", "surrogateescape"))])))
    else:
        lines[at] = mutate.reshaped(lines[at], chance)
    body = b"\n".join(lines) + b"\n"
    trailer = mutate.parsed(
        b'{"events":%d,"digest":"%b"}' % (len(lines) - 2, hashlib.sha256(body).hexdigest().encode())
    )
    if chance.randrange(8) == 0:
        trailer = mutate.changed(trailer, chance)
    return Case("export", f"line {at} resealed", {"x.export": body + mutate.as_bytes(mutate.written(trailer)) + b"\n"})


def check_export(case: Case, home: Path) -> None:
    file = home / "x.export"
    file.write_bytes(case.files["x.export"] or b"")
    read = answered("read export", lambda: exports.read_export(file))
    answered("is export", lambda: exports.is_export(file))
    if isinstance(read, exports.Exported):
        answered("violations of an export", lambda: read.held.violations)
    target = home / "t"
    store = opened(target)
    done = answered("import", lambda: exports.take_in(store, file, epoch="e-2", acknowledge=True, told="", timeout=1))
    if isinstance(done, ControllerError):
        left = bytes_of(target) if target.is_dir() else {}
        must("controller.json" not in left, "a refused import left a document", left.keys())
        return
    must(isinstance(answered("read after an import", opened(target).read), Snapshot), "imported, and not readable")
    must(
        isinstance(answered("fsck after an import", lambda: check(opened(target))), Verdict), "imported, and not judged"
    )


@cache
def _export() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        place = world("journal")
        place.put(Path(home) / "s", {})
        return exports.export(opened(Path(home) / "s"))[0]


TARGETS = (
    Target("edits", edited, check_edited),
    Target("exports", export_made, check_export),
)
