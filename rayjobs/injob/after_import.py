"""Patches a third-party module as soon as a program imports it; never imports one itself."""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any, Callable, Dict

Change = Callable[[Any], None]

_changes: Dict[str, Change] = {}


def after_import(name: str, change: Change) -> None:
    """Call `change` with a module: now if it is already imported, else once it is.

    A second change of one module replaces the first. `change` must leave an already changed module
    alone.
    """
    module = sys.modules.get(name)
    if module is not None:
        change(module)
    _changes[name] = change
    if not any(isinstance(one, _AfterImport) for one in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module through the other finders, and changes it when it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        change = _changes.get(name)
        if change is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None or finder is self else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Changing(spec.loader, change)
                return spec
        return None


class _Changing(importlib.abc.Loader):
    """Loads a module with its own loader, then changes it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._change(module)
