"""The old top-level names of the two packages, and records that hold them."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from rayjobs.compute.drivers import resolve
from rayjobs.core.aliases import canonical
from rayjobs.tuning.driver_actor import start


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tuning.driver_actor", "rayjobs.tuning.driver_actor"),
        ("tuning", "rayjobs.tuning"),
        ("datastore.cache", "rayjobs.datastore.cache"),
        ("rayjobs.tuning.runs", "rayjobs.tuning.runs"),
        ("tuningfork.space", "tuningfork.space"),
    ],
)
def test_canonical_names(old: str, new: str) -> None:
    assert canonical(old) == new


def test_a_record_of_an_older_version_finds_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a module of the user's has the old name."""
    monkeypatch.setitem(sys.modules, "tuning", ModuleType("tuning"))
    assert resolve("tuning.driver_actor:start") is start
    assert resolve("rayjobs.tuning.driver_actor:start") is start


def test_a_package_of_somebody_else_keeps_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("datastore")  # the finder is there
    theirs = ModuleType("datastore")
    theirs.__path__ = []
    monkeypatch.setitem(sys.modules, "datastore", theirs)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("datastore.settings_of_theirs")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("datastore.mountfiles")
