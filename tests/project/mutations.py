"""The mutations that bin/mutation-sweep makes: one guard each, named, in mutations.toml beside this file."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = "tests/project/mutations.toml"


class Mutation(NamedTuple):
    """One guard taken out: *old*, which *function* of *module* holds exactly once, becomes *new*.

    `claim` says what then goes unguarded; `tests` are the node ids or files that are expected to miss it.
    """

    name: str
    claim: str
    module: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_table(root: Path) -> tuple[Mutation, ...]:
    """The mutations of the tree at *root*, as they are written. Raises ValueError."""
    try:
        rows = tomllib.loads((root / TABLE).read_text(encoding="utf-8")).get("mutation", [])
        return tuple(Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{TABLE}: {error!r}; each [[mutation]] needs {', '.join(Mutation._fields)}") from error


def span_of(source: str, function: str) -> tuple[int, int]:
    """Where in *source* that function (`Class.method`) begins and ends, decorators included. Raises LookupError."""
    *outer, name = function.split(".")
    scope: Sequence[ast.stmt] = ast.parse(source).body
    for part in outer:
        scope = [n for node in scope if isinstance(node, ast.ClassDef) and node.name == part for n in node.body]
    functions = [node for node in scope if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [node for node in functions if node.name == name]
    if len(found) != 1:
        raise LookupError(f"there are {len(found)} functions {function}")
    lines = source.splitlines(keepends=True)
    first = min([found[0].lineno, *(node.lineno for node in found[0].decorator_list)])
    return len("".join(lines[: first - 1])), len("".join(lines[: found[0].end_lineno]))


def mutated(source: str, mutation: Mutation) -> str:
    """*source* without the guard. Raises LookupError or ValueError when it does not apply, or leaves no program."""
    begin, end = span_of(source, mutation.function)
    body = source[begin:end]
    if mutation.old == mutation.new:
        raise ValueError("old and new are the same")
    if body.count(mutation.old) != 1:
        raise ValueError(f"old is in {mutation.function} {body.count(mutation.old)} times instead of once")
    after = source[:begin] + body.replace(mutation.old, mutation.new) + source[end:]
    try:
        compile(after, mutation.module, "exec")
    except SyntaxError as error:
        raise ValueError(f"what is left does not compile: {error}") from error
    return after


def unfit(root: Path, mutations: Sequence[Mutation]) -> list[str]:
    """Everything that keeps *mutations* from meaning something in the tree at *root*."""
    names = [mutation.name for mutation in mutations]
    found = [f"{name}: a name that several mutations have" for name in sorted({*names}) if names.count(name) > 1]
    for mutation in mutations:
        try:
            mutated((root / mutation.module).read_text(encoding="utf-8"), mutation)
        except (OSError, LookupError, ValueError) as error:
            found.append(f"{mutation.name}: {mutation.module}: {error}")
        if not mutation.claim or not mutation.tests:
            found.append(f"{mutation.name}: it needs a claim, and tests")
        found += [f"{mutation.name}: there is no test {test}" for test in mutation.tests if not has_test(root, test)]
    return found


def has_test(root: Path, test: str) -> bool:
    """Whether the file of a node id defines its class and function; what those inherit is looked for by name alone."""
    path, _, rest = test.partition("::")
    file = root / path
    if not (file.is_file() and file.name.startswith("test_")):
        return False
    parts = re.sub(r"\[.*", "", rest).split("::") if rest else []
    shared = file.parent / "contract.py"
    text = file.read_text(encoding="utf-8")
    inherited = text + (shared.read_text(encoding="utf-8") if shared.is_file() else "")
    return all(
        re.search(
            rf"^ *(?:async )?(?:def|class) {re.escape(part)}\b", inherited if part == parts[-1] else text, re.MULTILINE
        )
        for part in parts
    )
