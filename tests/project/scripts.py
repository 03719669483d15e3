"""Loads the project's own scripts, which have no suffix, as modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    """The script bin/*name* as a module, without running its main."""
    module_name = name.replace("-", "_") + "_script"
    spec = importlib.util.spec_from_loader(module_name, SourceFileLoader(module_name, str(ROOT / "bin" / name)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module
