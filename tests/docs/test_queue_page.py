"""The Python of docs/queue.md is a program, typed here as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller import Controller

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "queue.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_block_of_the_page_takes_the_run_and_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Controller.init("state").close()
    (example,) = EXAMPLES
    exec(compile(example, "docs/queue.md", "exec"), {})
    assert capsys.readouterr().out == "r-1 1 ops@example.org\n"
    with Controller.open("state") as fleet:
        assert fleet.get("r-1").state == "succeeded"
