"""Old names: the top-level `datastore` and `tuning`, and modules that have moved."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

# old top-level name → canonical name
ALIASES = {"datastore": "rayjobs.datastore", "tuning": "rayjobs.tuning"}
# Old names of modules that processes of an earlier version still use: a keeper runs the starter by
# name, Ray restarts an actor, an agent pickles the errors that it returns to a newer actor, and an
# attempt host or a keeper imports some modules only when it needs them.
MOVED = {
    "rayjobs.compute.actor": "rayjobs.engine.actor",
    "rayjobs.compute.agent": "rayjobs.node.agent",
    "rayjobs.compute.cluster": "rayjobs.protocol.agent",
    "rayjobs.compute.keeper": "rayjobs.target.keeper",
    "rayjobs.compute.raylaunch": "rayjobs.engine.starter",
    "rayjobs.errors": "rayjobs.core.errors",
    "rayjobs.failures": "rayjobs.core.failures",
    "rayjobs.injob.glooranks": "rayjobs.injob.gloo_ranks",
    "rayjobs.injob.hostmessages": "rayjobs.injob.host_messages",
    "rayjobs.injob.lazydataclass": "rayjobs.injob.lazy_dataclass",
    "rayjobs.injob.parallelmessages": "rayjobs.injob.parallel_messages",
    "rayjobs.injob.recordfiles": "rayjobs.injob.record_files",
    "rayjobs.injob.urlmap": "rayjobs.injob.url_map",
    "rayjobs.queuerecords": "rayjobs.jobs.queue_records",
    "rayjobs.records": "rayjobs.jobs.records",
    "rayjobs.states": "rayjobs.jobs.states",
    "rayjobs.targetstart": "rayjobs.target.background_start",
}


def canonical(module: str) -> str:
    """Return the canonical name of a module that a record may name by its old one.

    Records keep names such as ``tuning.driver_actor``. They are translated, never imported
    directly: a user's own ``tuning.py`` may have that name.
    """
    if module in MOVED:
        return MOVED[module]
    top, dot, rest = module.partition(".")
    return ALIASES.get(top, top) + dot + rest


def alias(old: str) -> None:
    """Make `old`, which is being imported, an alias of its canonical package.

    Modules below it become aliases too: each module is loaded once, by whatever name it is
    imported. A user's own package of the same name is left alone.
    """
    sys.modules[old] = importlib.import_module(ALIASES[old])
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        # Before the `__path__` finder, which would load every module a second time.
        sys.meta_path.insert(0, _AliasFinder())


def find_moved(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the import spec of a module that has moved, by its old name; None for other names."""
    if name in MOVED:
        return importlib.machinery.ModuleSpec(name, _AliasLoader(MOVED[name]))
    if any(old.startswith(f"{name}.") for old in MOVED):
        return importlib.machinery.ModuleSpec(name, None, is_package=True)  # the folder was removed
    return None


class _AliasFinder(importlib.abc.MetaPathFinder):
    """Finds only the modules below an alias."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        top, dot, _ = fullname.partition(".")
        if not dot or top not in ALIASES:
            return None
        ours = sys.modules.get(ALIASES[top])
        if ours is None or sys.modules.get(top) is not ours:
            return None  # a third-party package
        return importlib.machinery.ModuleSpec(fullname, _AliasLoader(canonical(fullname)))


class _AliasLoader(importlib.abc.Loader):
    """Loads a module by returning the one with the canonical name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module has already been executed; the import system has just replaced its spec by the
        # alias's.
        module.__spec__ = self._spec

    def get_code(self, name: str) -> CodeType | None:
        """Return the module's code, for ``python -m``."""
        spec = importlib.util.find_spec(self._name)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(self._name)
