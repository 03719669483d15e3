"""bin/allow-list: time, chance, environment, processes and locks each have one home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.project.scripts import ROOT, load

allow_list = load("allow-list")
ELSEWHERE = "controller/engine/planner.py"


def said(source: str, file: str = ELSEWHERE) -> list[str]:
    return [str(finding) for finding in allow_list.check_source(file, source)]


def test_this_project_keeps_to_its_list() -> None:
    assert [str(finding) for finding in allow_list.check_tree(ROOT)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import time as clock",
        "from time import monotonic",
        "def now():\n    import time",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import time",
        "import datetime\ndatetime.datetime.now()",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "from datetime import datetime\ndatetime.now()",
        "from datetime import date as day\nday.today()",
        "import random",
        "import secrets",
        "from uuid import uuid4",
        "import os\nos.urandom(8)",
        "import os\nos.environ['HOME']",
        "import os as system\nsystem.environ.get('HOME')",
        "from os import environ",
        "from os import getenv as setting",
        "from os import *",
        "import os.path\nos.environ",
        "import subprocess",
        "import asyncio.subprocess",
        "import multiprocessing",
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "import os\nstart = os.execve",
        "from os import posix_spawn",
        "import filelock",
        "from filelock import FileLock",
        "import fcntl",
        "import click",
        "import importlib\nimportlib.import_module('time')",
        "__import__('time')",
        "eval('1')",
        "import a_library_nobody_argued_for",
    ],
)
def test_what_has_its_home_elsewhere_is_found(source: str) -> None:
    assert said(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fsync(3)\nos.path.join('a', 'b')",
        "from collections.abc import Mapping",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import importlib.metadata\nimportlib.metadata.version('controller')",
        "import orjson, msgspec, threading",
        "from controller.clock import Clock",
        "def wait(time, random, environ):\n    time.sleep(random.random())\n    return environ.get",
        "class Settings:\n    environ = {}\nSettings.environ",
    ],
)
def test_what_everybody_may_use_passes(source: str) -> None:
    assert said(source) == []


@pytest.mark.parametrize("entry", allow_list.HOMES, ids=lambda entry: min(entry.things))
def test_everything_may_be_used_at_home(entry: Any) -> None:
    for thing in entry.things:
        module, _, attribute = thing.rpartition(".")
        source = f"from {module} import {attribute}" if module else f"import {thing}"
        for place in entry.places:
            assert said(source, place + "any.py" if place.endswith("/") else place) == []
        assert said(source) != []


def test_nothing_has_two_entries() -> None:
    things = [thing for entry in allow_list.HOMES for thing in entry.things]
    assert sorted(things) == sorted(set(things))
    assert not allow_list.PURE & allow_list.FREE


@pytest.mark.parametrize("module", ["os", "pathlib", "threading", "socket", "sys", "importlib.metadata"])
def test_the_model_reaches_nothing_outside_the_process(module: str) -> None:
    assert said(f"import {module}", "controller/model/run.py") == [
        f"controller/model/run.py:1: {module}: the model reaches nothing outside the process; pass the value in"
    ]


def test_a_finding_says_where_what_and_where_its_home_is() -> None:
    (line,) = said("import os\n\nHOME = os.environ['HOME']\n")
    assert line.startswith(f"{ELSEWHERE}:3: os.environ: its home is controller/api/settings.py (")


def test_it_exits_non_zero_with_a_line_for_each_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "controller").mkdir()
    (tmp_path / "controller/wrong.py").write_text("import time\nimport random\n")
    assert allow_list.main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["controller/wrong.py:1", "controller/wrong.py:2"]


def test_nothing_to_check_is_a_finding(tmp_path: Path) -> None:
    assert allow_list.main(tmp_path) == 1
