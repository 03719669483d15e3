"""A power cut takes back nothing that was acknowledged, or that anybody built upon."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.store.power.blocks import Choose
from tests.store.power.disk import Call, Deaf, Disk, Trouble
from tests.store.power.story import Act, Story

KINDS: Final = ["cut", "kill", "fail", "late", "full", "broken"]
CALLS: Final = ["", "fdatasync", "fsync", "open", "pwrite", "rename", "unlink", "write"]

who = st.integers(0, 1)
sizes = st.lists(st.sampled_from([1, 700, 700, 5000]), min_size=1, max_size=3).map(tuple)
nothing = st.just(())
ends = st.sampled_from(["cut", "cut", "kill", "kill", "fail"])


def acts(
    what: st.SearchStrategy[str], trouble: st.SearchStrategy[Trouble | None], sizes: st.SearchStrategy[tuple[int, ...]]
) -> st.SearchStrategy[Act]:
    return st.tuples(what, who, sizes, trouble).map(lambda act: Act(*act))


def troubles(
    kinds: st.SearchStrategy[str], calls: list[str], at: st.SearchStrategy[int]
) -> st.SearchStrategy[Trouble | None]:
    return st.tuples(kinds, st.sampled_from(calls), at).map(lambda trouble: Trouble(*trouble))


anything = troubles(st.sampled_from(KINDS), CALLS, st.integers(0, 9))
commit, other = st.just("commit"), st.sampled_from(["load", "fold", "replace", "read", "close"])
plain = acts(commit, st.none(), sizes) | acts(other, st.none(), nothing)
then = st.one_of(st.none(), plain, acts(st.just("load"), st.none(), nothing))
power = st.sampled_from([None, Act("cut")])


def scenes(*strategies: st.SearchStrategy[Act | None]) -> st.SearchStrategy[list[Act]]:
    """Up to four times over, one of each of the *strategies*, and perhaps a cut."""
    scene = st.tuples(*strategies, power).map(lambda scene: [act for act in scene if act is not None])
    return st.lists(scene, max_size=4).map(lambda parts: [act for part in parts for act in part])


in_a_commit = troubles(ends, ["pwrite"], st.integers(1, 2)) | troubles(
    st.sampled_from(KINDS), ["pwrite", "fdatasync"], st.integers(0, 1)
)
in_a_fold = troubles(ends, ["rename"], st.just(0)) | troubles(ends, ["open", "unlink", "fsync"], st.integers(0, 9))
tearing = troubles(st.just("cut"), ["pwrite"], st.integers(1, 2))
in_the_mending = st.none() | troubles(ends, ["open", "write", "fsync", "replace", "ftruncate"], st.integers(0, 5))
STORIES: Final = {
    "commits": scenes(plain, acts(commit, in_a_commit, sizes), then),
    "folds": scenes(plain, acts(st.just("fold"), in_a_fold, nothing), then),
    "replacing": scenes(acts(st.just("replace"), in_a_fold, nothing), then),
    "tearing": scenes(acts(commit, tearing, sizes), acts(commit, in_the_mending, sizes), then),
    "anything": scenes(plain, acts(commit, anything, sizes) | acts(other, anything, nothing), then),
    "init": st.just([]),
}
"""Something happens in the midst of an act; then somebody goes on, and the power may go."""
INIT: Final = troubles(ends, ["open", "write", "fsync", "rename", "mkdir"], st.integers(0, 6))


def leaving(*kept: str, sectors: str = "", midway: bool = False) -> Callable[[], Choose]:
    """A cut leaves everything of these kinds and nothing of the others. *sectors*: one in two of them. *midway*: what
    came first after what was synced.
    """

    def begun() -> Choose:
        seen = itertools.count(1 if sectors == "odd" else 0)

        def choose(what: str, options: int) -> int:
            if midway:
                return 1
            kept_too = what == "sector" and sectors and next(seen) % 2
            return options - 1 if what in kept or kept_too else 0

        return choose

    return begun


LEFT: Final[Mapping[str, Callable[[], Choose]]] = {
    "nothing": leaving(),
    "names": leaving("name"),
    "bytes": leaving("size", "sector"),
    "zeros": leaving("name", "size"),
    "odd": leaving("name", "size", sectors="odd"),
    "even": leaving("name", "size", sectors="even"),
    "everything": leaving("name", "size", "sector"),
}
"""Of what was not synced: where faults show, it is all or nothing of one kind."""


def chooser(data: st.DataObject) -> Callable[[], Choose]:
    """Drawn only when there is something to choose."""

    def begun() -> Choose:
        left: list[Choose] = []

        def choose(what: str, options: int) -> int:
            if not left:
                how = data.draw(st.sampled_from([*LEFT, "any", "any"]), label="left")
                left.append(any_of if how == "any" else LEFT[how]())
            return left[0](what, options)

        return choose

    def any_of(what: str, options: int) -> int:
        return data.draw(st.integers(0, options - 1))

    return begun


def test_what_is_synced_survives_and_what_is_not_may(tmp_path: Path) -> None:
    """The simulated disk: bytes by the sync of their file, names by that of their directory, a rename whole or not."""
    found = set()
    for kept in LEFT.values():
        for synced in ("", "file", "directory"):
            root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            root.mkdir()
            (root / "old").write_bytes(b"old")
            disk = Disk(root, kept())
            with disk.running():
                fd = os.open(root / "new", os.O_RDWR | os.O_CREAT)
                os.pwrite(fd, b"new", 0)
                if synced:
                    os.fsync(fd)
                os.close(fd)
                os.rename(root / "new", root / "old")
                if synced == "directory":
                    top = os.open(root, os.O_RDONLY)
                    os.fsync(top)
                    os.close(top)
            after = tmp_path / f"{root.name}-after"
            disk.cut(after)
            names = sorted(path.name for path in after.iterdir())
            found.add((synced, *names, (after / "old").read_bytes()))
    assert found == {
        ("", "old", b"old"),
        ("", "old", b"new"),
        ("", "old", b""),
        ("", "old", b"\0\0\0"),
        ("file", "old", b"old"),
        ("file", "old", b"new"),
        ("directory", "old", b"new"),
    }


def test_what_a_failed_sync_lost_is_not_kept_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_bytes(b"old")
    disk = Disk(tmp_path / "disk")
    fd = os.open(tmp_path / "disk" / "file", os.O_RDWR)
    with disk.running(Trouble("fail", "fdatasync")):
        os.pwrite(fd, b"new", 0)
        with pytest.raises(OSError, match="Input/output"):
            os.fdatasync(fd)
        os.fdatasync(fd)
    assert os.pread(fd, 9, 0) == b"new"
    os.close(fd)
    disk.cut(tmp_path / "after")
    assert (tmp_path / "after" / "file").read_bytes() == b"old"


def test_a_change_that_the_disk_does_not_see_is_no_story(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with disk.running():
        (tmp_path / "disk" / "file").write_bytes(b"behind its back")
    with pytest.raises(NotImplementedError, match="does not see"):
        disk.cut(tmp_path / "after")


def told(
    factory: pytest.TempPathFactory,
    chooser: Callable[[], Choose],
    acts: Sequence[Act],
    init: Trouble | None = None,
    deaf: Deaf | None = None,
) -> list[str]:
    with tempfile.TemporaryDirectory(dir=factory.getbasetemp()) as root:
        return Story(Path(root), chooser, deaf).tell(acts, init=init)


@pytest.mark.parametrize("theme", STORIES)
def test_a_cut_takes_back_nothing_that_anybody_built_upon(tmp_path_factory: pytest.TempPathFactory, theme: str) -> None:
    @settings(max_examples=100)
    @given(acts=STORIES[theme], init=st.none() | INIT | anything, data=st.data())
    def stories(acts: list[Act], init: Trouble | None, data: st.DataObject) -> None:
        assert told(tmp_path_factory, chooser(data), acts, init) == []

    stories()


TORN: Final = Act("commit", 0, (1, 700), Trouble("cut", "pwrite", 2))
NO_ROOM: Final = Act("commit", 0, (1,), Trouble("full", "pwrite", 1))
LATE: Final = Act("commit", 0, (1,), Trouble("late", "fdatasync"))
WENT_WRONG: Final = {
    "a line whose sync failed, and which could not be undone, was synced again by another process": (
        [Act("commit", 0, (1,), Trouble("broken", "fdatasync")), Act("load", 1)],
        leaving(),
    ),
    "the same, with a line of many pages": (
        [Act("commit", 0, (100_000,), Trouble("broken", "fdatasync")), Act("load", 1)],
        leaving(),
    ),
    "the same, by a process that knew what was before it": (
        [Act("commit", 0, (1,)), Act("commit", 1, (1,), Trouble("broken", "fdatasync")), Act("load", 0)],
        leaving(),
    ),
    "a line whose sync failed, and which could not be undone, was lost from a closed journal": (
        [Act("commit", 0, (1,), Trouble("broken", "fdatasync")), Act("load", 0)],
        leaving(),
    ),
    "a line that was undone came back behind the end of a closed journal": ([LATE, Act("load", 0)], leaving()),
    "a line that was undone came back after another process had loaded without it": (
        [Act("commit", 1, (1,)), LATE, Act("load", 1)],
        leaving(),
    ),
    "half a line that was undone came back behind the end of a folded journal": (
        [Act("commit", 0, (1,)), NO_ROOM, Act("fold", 0)],
        leaving(midway=True),
    ),
    "half a line that was undone came back after a clean exit": (
        [Act("commit", 0, (1,)), NO_ROOM, Act("close", 0)],
        leaving(midway=True),
    ),
    "a torn line whose first sector is lost": ([TORN, Act("commit", 0, (1,))], leaving("name", "size", sectors="odd")),
    "a torn line whose second sector is lost": (
        [TORN, Act("commit", 0, (1,))],
        leaving("name", "size", sectors="even"),
    ),
    "a whole document in the place of a torn line": ([TORN, Act("replace", 0)], leaving("name", "size", sectors="odd")),
    "killed while a torn line was set aside": (
        [TORN, Act("commit", 0, (1,), Trouble("kill", "open")), Act("commit", 1, (1,))],
        leaving("name", "size", sectors="odd"),
    ),
    "written anew twice at one revision": (
        [Act("load", 0, (), Trouble("fail", "fsync")), Act("load", 0), Act("load", 1)],
        leaving(),
    ),
}


@pytest.mark.parametrize("what", WENT_WRONG)
def test_what_went_wrong_once(tmp_path_factory: pytest.TempPathFactory, what: str) -> None:
    acts, chooser = WENT_WRONG[what]
    assert told(tmp_path_factory, chooser, acts) == []


def test_an_init_that_completes_a_killed_one_is_durable(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert told(tmp_path_factory, leaving(), [], init=Trouble("kill", "mkdir")) == []


class Skipped(NamedTuple):
    """One sync that is left out, and the stories that miss it. *after* is the call before it."""

    what: str
    stories: st.SearchStrategy[list[Act]]
    site: str
    file: str = ""
    call: str = ""
    after: str = ""
    init: st.SearchStrategy[Trouble | None] = st.none()

    def deaf(self, calls: Sequence[Call]) -> bool:
        last = calls[-1]
        return (
            self.site in last.site
            and last.file.startswith(self.file)
            and self.call in ("", last.name)
            and (not self.after or (len(calls) > 1 and calls[-2].name == self.after))
        )


def only(what: str, *trouble: Trouble | None) -> st.SearchStrategy[Act]:
    return acts(st.just(what), st.sampled_from(trouble or [None]), sizes if what == "commit" else nothing)


NO_ACTS: Final = st.just(list[Act]())
AFTERWARDS: Final = only("load") | only("commit")
SKIPPED: Final = (
    Skipped("a line", STORIES["commits"], "_append", call="fdatasync"),
    Skipped(
        "lines that are loaded",
        scenes(only("commit", Trouble("kill", "pwrite", 1)), only("load")),
        "_settled",
        "journal-",
    ),
    Skipped(
        "names that are loaded",
        scenes(only("commit"), only("fold", Trouble("kill", "rename")), AFTERWARDS),
        "_settled>sync_directory",
    ),
    Skipped("the checkpoint", NO_ACTS, ">write", ".controller.json"),
    Skipped("its journal", NO_ACTS, ">write", "journal-"),
    Skipped(
        "a first temporary file",
        NO_ACTS,
        ">write>sync_directory",
        after="open",
        init=st.builds(Trouble, st.just("cut"), st.just("fsync"), st.integers(3, 6)),
    ),
    Skipped(
        "names before the rename",
        scenes(only("replace", Trouble("cut", "rename"))),
        ">write>sync_directory",
        after="fsync",
    ),
    Skipped("the rename", NO_ACTS, ">write>sync_directory", after="rename"),
    Skipped(
        "a journal that is removed again",
        scenes(only("replace", Trouble("fail", "rename"))),
        ">write>sync_directory",
        after="unlink",
    ),
    Skipped(
        "a journal that is swept",
        scenes(
            only("replace", *(Trouble("kill", "fsync", at) for at in range(4, 7))),
            only("load", Trouble("cut", "unlink", 1)),
        ),
        "sweep>sync_directory",
    ),
    Skipped("torn bytes that are kept", STORIES["tearing"], "set_aside", ".torn-"),
    Skipped(
        "their name",
        scenes(acts(commit, tearing, st.just((700,))), acts(commit, st.none(), st.just((1,)))),
        "set_aside>write_new>sync_directory",
    ),
    Skipped(
        "that they are cut off",
        scenes(
            acts(commit, tearing, st.just((700,))),
            acts(commit, st.just(Trouble("cut", "pwrite", 1)), st.sampled_from([(1,), (700,), (5000,)])),
        ),
        "set_aside",
        "journal-",
    ),
    Skipped("a merged file", STORIES["folds"], "_merge", ".controller.history"),
    Skipped("its name", STORIES["folds"], "_merge>sync_directory"),
    Skipped("a new directory", NO_ACTS, "make_directory>sync_directory"),
    Skipped("the settings", NO_ACTS, "_write_config>write_new", ".controller.toml"),
)


@pytest.mark.parametrize("skipped", SKIPPED, ids=[each.what for each in SKIPPED])
def test_a_sync_that_is_left_out_is_missed(tmp_path_factory: pytest.TempPathFactory, skipped: Skipped) -> None:
    """These stories can fail: they do, once the store is without one of its syncs."""

    @settings(max_examples=300, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(acts=skipped.stories, init=skipped.init, data=st.data())
    def stories(acts: list[Act], init: Trouble | None, data: st.DataObject) -> None:
        assert told(tmp_path_factory, chooser(data), acts, init, skipped.deaf) == []

    with pytest.raises(AssertionError):
        stories()
