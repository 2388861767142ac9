"""`catalogue_of` a workspace reads only its attribute `catalogue`."""

from __future__ import annotations

from rayjobs.datastore.catalogue import MemoryCatalogue
from rayjobs.datastore.stores import catalogue_of


class Workspace:
    """Has attributes that a catalogue also has, as a real workspace does."""

    def __init__(self) -> None:
        self.catalogue = MemoryCatalogue()

    @property
    def datasets(self) -> object:
        raise AssertionError("listing the datasets would request the catalogue again")

    datastores = datasets


def test_only_the_catalogue_of_a_workspace_is_read() -> None:
    workspace = Workspace()
    assert catalogue_of(workspace) is workspace.catalogue
    assert catalogue_of(workspace.catalogue) is workspace.catalogue
