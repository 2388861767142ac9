"""Provides ``import azureml``: all of its modules or none, so that the real one never mixes in.

A module is made from the table in `names`; a name's target is imported on first use. Standard
library only: the same finder works in a job whose environment lacks rayjobs.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, List, Optional, Sequence

from rayjobs.injob.azureml import names
from rayjobs.injob.azureml.exceptions import NotProvidedError

TOP = "azureml"
SAID_VARIABLE = "RAYJOBS_AZUREML_SAID"


class AlreadyImportedError(ImportError):
    """The real ``azureml`` is in use in this process."""


class AzureMLFinder:
    """A finder for ``sys.meta_path`` that provides ``azureml`` and everything below it."""

    @staticmethod
    def find_spec(
        fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of one of our modules; None for modules outside azureml.

        Raises:
            NotProvidedError: azureml may have such a module, but rayjobs does not. The next finder
                must not run: it would find a part of the real package.
        """
        if fullname != TOP and not fullname.startswith(TOP + "."):
            return None
        if names.is_module(fullname):
            return ModuleSpec(fullname, _Loader(), origin="rayjobs", is_package=True)
        parent, _, name = fullname.rpartition(".")
        # `from azureml.core import X` looks for a module X before it reports that there is none.
        raise NotProvidedError(sentence_for(parent, name))


class _Loader(Loader):
    """Makes the modules that `AzureMLFinder` finds."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AzureMLModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _AzureMLModule(ModuleType):
    """A module whose names are looked up in the table."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "rayjobs' replacement of %s; see docs/guides/azure.md." % name)
        public = [one for one in names.MODULES.get(name, {}) if not one.startswith("_")]
        self.__all__ = sorted(public)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        how, value = names.provided(self.__name__, name)
        if how == "by":
            found = load(value, "%s.%s" % (self.__name__, name))
        elif how == "refused":
            found = refused(self.__name__, name, names.SENTENCES[value])
        else:
            raise AttributeError(sentence_for(self.__name__, name))
        setattr(self, name, found)
        return found

    def __dir__(self) -> List[str]:
        return sorted([*super().__dir__(), *self.__all__])


class _Refused(type):
    """The metaclass of names that a program may import but not use."""

    sentence = ""

    def _refuse(cls) -> NotProvidedError:
        return NotProvidedError(cls.sentence)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise cls._refuse()


def refused(module: str, name: str, why: str) -> type:
    """Return a class called `name` whose every use raises an error with the reason.

    Programs import all names first, so one that trains and then deploys can still train.
    """
    sentence = "%s.%s is not part of rayjobs: %s." % (module, name, why)
    return _Refused(name, (), {"__module__": module, "__doc__": sentence, "sentence": sentence})


def load(target: str, wanted: str) -> Any:
    """Return the object that ``module:attribute`` names.

    Raises:
        NotProvidedError: a package that it needs is not in this environment.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rayjobs":
            raise
        raise NotProvidedError(
            "%s needs the package %r, which this job's environment (%s) does not have. "
            "azureml.core.Run works in every environment; for %s run the job with the target's "
            "own Python, or add rayjobs to its environment."
            % (wanted, error.name, sys.executable, wanted.rpartition(".")[2])
        ) from error


def sentence_for(module: str, name: str) -> str:
    """Return the message for a name that a module does not have."""
    how, key = names.provided(module, name)
    if how == "refused":
        return "%s.%s is not part of rayjobs: %s." % (module, name, names.SENTENCES[key])
    text = "%s has no %r that rayjobs knows" % (module, name)
    near = difflib.get_close_matches(name, names.MODULES.get(module, {}), n=1)
    if near:
        return "%s. Did you mean %r?" % (text, near[0])
    return "%s; `rayjobs azureml check` lists what a program uses and what is provided." % text


def install() -> Optional[str]:
    """Provide this process's ``import azureml``; a second call does nothing.

    Returns:
        The folder of an installed real ``azureml``, which is not used; None: not installed.

    Raises:
        AlreadyImportedError: the real one has been imported in this process.
    """
    if not any(isinstance(finder, AzureMLFinder) for finder in sys.meta_path):
        present = sys.modules.get(TOP)
        if present is not None and not isinstance(present, _AzureMLModule):
            if any(name.startswith(TOP + ".") for name in sys.modules):
                raise AlreadyImportedError(
                    "the real azureml (%s) was imported in this process before rayjobs could "
                    "replace it; import rayjobs.azureml.install first, or use `rayjobs azureml "
                    "run`" % ", ".join(getattr(present, "__path__", ["?"]))
                )
            del sys.modules[TOP]  # a namespace package that a .pth file made, not in use
        sys.meta_path.insert(0, AzureMLFinder())
    return real_package()


def real_package(without: str = "") -> Optional[str]:
    """Return the folder of an installed ``azureml`` that is not ours; None if there is none.

    Args:
        without: A folder on the module path to ignore.
    """
    path = [entry for entry in sys.path if not without or entry != without]
    found = PathFinder.find_spec(TOP, path)
    if found is None:
        return None
    # A folder of this name in the working directory is not the package.
    folders = [
        one
        for one in found.submodule_search_locations or ()
        if found.origin is not None or os.path.isdir(os.path.join(one, "core"))
    ]
    return next((one for one in folders if "rayjobs" not in one.split(os.sep)[-4:]), None)


def notice(folder: str) -> str:
    """Return the sentence that names the ``azureml`` in use."""
    return (
        "rayjobs: `import azureml` loads rayjobs' own modules; the package installed in %s is not "
        "used" % folder
    )
