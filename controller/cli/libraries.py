"""The libraries of every command, imported without what they import themselves and hardly ever use.

That is a sixth of a short command. While a library is imported, something small stands in for such a module, and loads
it once more of it is asked for: nothing is missing. A module that is there already is used as it is.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def load() -> None:
    """Import msgspec, pathlib and click, for whoever imports them next."""
    # All that msgspec looks for in typing_extensions, where that is installed, is in `typing`.
    with _instead("typing_extensions", typing):
        import msgspec  # noqa: F401
    with _instead("urllib.parse", _Quoting("urllib.parse")):
        import pathlib  # noqa: F401
    with _instead("inspect", _Inspecting("inspect")):
        import click  # noqa: F401


@contextmanager
def _instead(name: str, module: ModuleType) -> Iterator[None]:
    """Whoever imports *name* meanwhile gets *module*, unless the module itself is there."""
    sys.modules.setdefault(name, module)
    try:
        yield
    finally:
        _leave(name, module)


def _leave(name: str, module: ModuleType) -> None:
    if sys.modules.get(name) is module:
        del sys.modules[name]


class _StandIn(ModuleType):
    def real(self) -> Any:
        """The module itself, imported if need be."""
        _leave(self.__name__, self)
        return self.loaded()

    def loaded(self) -> ModuleType:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what an import asks any module for
            raise AttributeError(name)
        return getattr(self.real(), name)


class _Quoting(_StandIn):
    """What `pathlib` takes from `urllib.parse`: how to write a path as a URI."""

    def loaded(self) -> ModuleType:
        import urllib.parse

        return urllib.parse

    def quote_from_bytes(self, *args: Any, **named: Any) -> Any:
        return self.real().quote_from_bytes(*args, **named)


class _Inspecting(_StandIn):
    """What click calls `inspect` from then on. It asks for the help of every option, without its indentation."""

    def loaded(self) -> ModuleType:
        import inspect

        return inspect

    def cleandoc(self, text: str) -> Any:
        return text.lstrip() if text.isprintable() else self.real().cleandoc(text)  # printable: it is one line
