"""Each entry of docs/recovery.md has the same four parts, and the table at its top leads to every one."""

from __future__ import annotations

import re

import pytest

from tests.docs.runbook import PAGE, PARTS, Entry, anchor, entries


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: anchor(entry.title))
def test_an_entry_says_what_status_shows_what_it_means_what_to_type_and_what_is_refused(entry: Entry) -> None:
    assert tuple(entry.parts) == PARTS
    assert entry.shows, "status shows something"
    assert entry.types, "there is something to type"
    assert all(part.strip() for part in entry.parts.values())


def test_the_table_leads_to_every_entry_in_their_order() -> None:
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("|")]
    linked = [found[1] for row in rows if (found := re.search(r"\]\(#([^)]+)\)", row))]
    assert linked == list(entries())
