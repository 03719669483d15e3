"""docs/recovery.md as a test reads it: entries, what each says that status shows, what it types, what is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"
PARTS = ("What status shows.", "What it means.", "What to type.", "What is refused, and why.")
INLINE = re.compile(r"`(controller [^`\n]+)`")
BLOCK = re.compile(r"^    (.*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b(RUN|KEY|SHA|WHY|N)\b")


@dataclass(frozen=True)
class Entry:
    """One entry. `shows` are lines of status, `types` the commands of its block, `refused` those that are refused."""

    title: str
    parts: dict[str, str]

    @property
    def shows(self) -> list[str]:
        return BLOCK.findall(self.parts[PARTS[0]])

    @property
    def types(self) -> list[str]:
        return [line for line in BLOCK.findall(self.parts[PARTS[2]]) if line.startswith("controller ")]

    @property
    def allows(self) -> list[str]:
        """What it types, and what the entries type that it leads to for that."""
        known = entries()
        led_to = [known[name] for name in re.findall(r"\]\(#([^)]+)\)", self.parts[PARTS[2]])]
        return [*self.types, *(line for entry in led_to for line in entry.types)]

    @property
    def refused(self) -> list[str]:
        return INLINE.findall(self.parts[PARTS[3]])


def entries() -> dict[str, Entry]:
    """Every entry by the name that links lead to."""
    return {anchor(entry.title): entry for entry in _entries()}


def _entries() -> Iterator[Entry]:
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        if f"**{PARTS[0]}**" in text:
            pieces = re.split(r"\*\*(What [^*]+)\*\*", text)[1:]
            yield Entry(title, dict(zip(pieces[::2], pieces[1::2], strict=True)))


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def filled(line: str, **values: object) -> str:
    """*line* with its placeholders filled in. WHY is what somebody might say."""
    known: dict[str, object] = {"WHY": "'it has to be'", **values}
    return PLACEHOLDER.sub(lambda match: str(known.get(match[1], match[1])), line)


def arguments(line: str, **values: object) -> tuple[str, ...]:
    """What is typed after `controller`; without a comment, and without where its output goes."""
    words = shlex.split(filled(line, **values), comments=True)[1:]
    return tuple(words[: words.index(">")] if ">" in words else words)


def missing(shown: str, entry: Entry, **values: object) -> list[str]:
    """The lines of *entry* that *shown* lacks, in their order. `...` stands for anything, spaces for any number."""
    lines, lacking, start = [" ".join(line.split()) for line in shown.splitlines()], [], 0
    for line in entry.shows:
        words = " ".join(filled(line, WHY="WHY", **values).split())
        pattern = re.compile(".*".join(re.escape(part) for part in words.split("...")))
        found = next((n for n in range(start, len(lines)) if pattern.search(lines[n])), None)
        if found is None:
            lacking.append(words)
        else:
            start = found + 1
    return lacking
