"""What the settings say about how much history is kept, and what cannot be meant."""

from __future__ import annotations

import pytest

from controller.api import options
from controller.api import settings as config
from controller.model.errors import UsageFault
from controller.model.keep import Keep

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("", Keep(None, GIB)),
        ("[history]", Keep(None, GIB)),
        ('[history]\nkeep = { age = "90d", bytes = "2GiB" }', Keep(90 * 86_400_000, 2 * GIB)),
        ('[history.keep]\nage = "36h"', Keep(36 * 3_600_000, GIB)),
        ("history.keep.bytes = 5000", Keep(None, 5000)),
        ('[history]\nkeep = { bytes = "0KiB" }', Keep(None, None)),
        ('[history]\nkeep = { age = "0s", bytes = 0 }', Keep(None, None)),
        ('[history]\nkeep = { bytes = "3KiB" }', Keep(None, 3072)),
        ('[history]\nkeep = { bytes = "7MiB" }', Keep(None, 7 << 20)),
    ],
)
def test_what_is_kept_arrives_however_the_table_is_written(text: str, keep: Keep) -> None:
    assert config.parse(text, "f").keep == keep


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("age = 90", f"give {options.DURATIONS}, in quotes"),
        ('age = "90"', f"give {options.DURATIONS}"),
        ('age = "4000d"', "give a duration of at most 3650d"),
        ('bytes = "1000"', f"give {options.SIZES}"),
        ('bytes = "1GB"', f"give {options.SIZES}"),
        ('bytes = "1 GiB"', f"give {options.SIZES}"),
        ('bytes = "-1GiB"', f"give {options.SIZES}"),
        ("bytes = 1.5", f"give {options.SIZES}"),
        ("bytes = true", f"give {options.SIZES}"),
        ("bytes = []", f"give {options.SIZES}"),
        ("bytes = -1", "give a size from 0 to 1073741824GiB"),
        ('bytes = "99999999999GiB"', "give a size from 0 to 1073741824GiB"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_allowed(line: str, allowed: str) -> None:
    with pytest.raises(UsageFault) as refused:
        config.parse(f"[history.keep]\n{line}", "f")
    key = line.partition(" ")[0]
    assert (refused.value.where, refused.value.next) == (f"f, [history.keep] {key}", allowed)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[history]\nkeep = "90d"', "history.keep is a section"),
        ('[history]\nkept = { age = "90d" }', "unknown section [history.kept] (did you mean 'history.keep'?)"),
        ("[history]\nage = 1", "unknown option 'age'"),
        ("[history.keep]\nbyte = 1", "unknown option 'byte' (did you mean 'bytes'?)"),
    ],
)
def test_a_mistyped_name_is_refused_with_the_near_one(text: str, what: str) -> None:
    with pytest.raises(UsageFault) as refused:
        config.parse(text, "f")
    assert refused.value.what == what


def test_the_template_says_what_is_kept_by_default() -> None:
    lines = options.template(4, "local", ()).splitlines()
    here = lines.index("[history.keep]")
    assert [line for line in lines[here:] if "=" in line] == ['# age = "0s"', '# bytes = "1GiB"']
