"""Asking a workspace for its catalogue reads nothing else of it."""

from __future__ import annotations

from rayjobs.datastore.catalogue import MemoryCatalogue
from rayjobs.datastore.stores import catalogue_of


class Workspace:
    """Has names that a catalogue has too, as a real workspace does."""

    def __init__(self) -> None:
        self.catalogue = MemoryCatalogue()

    @property
    def datasets(self) -> object:
        raise AssertionError("to list the datasets asks for the catalogue again")

    datastores = datasets


def test_a_workspace_is_asked_for_its_catalogue_alone() -> None:
    workspace = Workspace()
    assert catalogue_of(workspace) is workspace.catalogue
    assert catalogue_of(workspace.catalogue) is workspace.catalogue
