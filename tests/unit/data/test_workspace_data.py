"""A workspace has a default datastore from the start, and finds its data by name."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayjobs import Workspace
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.errors import DatastoreInUse, DatastoreNotFound
from rayjobs.injob import url_map
from rayjobs.injob.data_file import AttemptInput
from rayjobs.injob.inputs import InputDatasets
from rayjobs.workspace.azure import AzureSettings
from rayjobs.workspace.folder import WorkspaceFiles, open_workspace

CONTAINER = "https://account.blob.core.windows.net/box"


def test_a_new_workspace_has_a_datastore_in_its_folder(workspace: Workspace) -> None:
    store = workspace.get_default_datastore()
    folder = WorkspaceFiles(workspace.opened.path).datastores / "workspaceblobstore"
    assert (store.name, store.record.settings["root"]) == ("workspaceblobstore", str(folder))
    assert folder.is_dir()
    assert list(workspace.datastores) == ["workspaceblobstore", "workspacefilestore"]
    files = Datastore(workspace, "workspacefilestore")
    with pytest.raises(DatastoreInUse, match="belongs to every workspace"):
        files.unregister(force=True)
    assert workspace.datasets == {}


def test_datastores_and_datasets_are_found_by_name(
    workspace: Workspace, store: Datastore, tmp_path: Path
) -> None:
    Datastore.register_folder(workspace, "here", tmp_path)
    Dataset.File.from_files((store, "digits")).register(workspace, "digits")
    assert Datastore.get(workspace, "here") == workspace.datastores["here"]
    assert workspace.datasets["digits"].version == 1
    assert Dataset.get_by_name(workspace, "digits").name == "digits"
    with pytest.raises(DatastoreNotFound, match="here, workspaceblobstore"):
        Datastore(workspace, "there")
    workspace.set_default_datastore("here")
    assert Datastore(workspace).name == "here"
    assert Workspace(path=workspace.opened.path).get_default_datastore().name == "here"


OPENS = """
import sys
from rayjobs import Workspace
print(Workspace.create("x", path=sys.argv[1], exist_ok=True).get_default_datastore().name)
"""


@pytest.mark.long
def test_processes_that_open_a_new_workspace_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENS, str(tmp_path / "w")]
    opening = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate()[0] for process in opening} == {"workspaceblobstore\n"}


def test_inputs_in_a_job_are_paths_and_unknown_names_list_them() -> None:
    found = InputDatasets({"a": AttemptInput("/data/a"), "b": AttemptInput("/data/b")})
    assert dict(found) == {"a": "/data/a", "b": "/data/b"}
    assert (found.get("c"), "a" in found, len(found)) == (None, True, 2)
    with pytest.raises(KeyError, match="it has: a, b"):
        found["c"]


@pytest.mark.long
def test_a_mapping_of_a_workspace_replaces_an_address(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "small.csv").write_text("x\n1\n")
    url = "https://example.test/big.csv"
    AzureSettings(workspace.store).map_url(url, str(tmp_path / "small.csv"))
    table = Dataset.Tabular.from_delimited_files(url)
    assert table.to_pandas_dataframe().to_dict("list") == {"x": [1]}
    code = (
        "import urllib.request\nfrom rayjobs.injob import url_map\nurl_map.install()\n"
        f"print(urllib.request.urlopen({url!r}).read().decode())"
    )
    urls = json.dumps({url: str(tmp_path / "small.csv")})
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RAYJOBS_URLS": urls},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout == "x\n1\n\n"


def _mapped(top: Path, name: str) -> tuple[Workspace, Path]:
    """Make a workspace that maps a container to its own folder."""
    workspace, folder = Workspace.create(name, path=top / name), top / f"{name}-data"
    folder.mkdir()
    (folder / "x.csv").write_text(f"x\n{name}\n")
    AzureSettings(workspace.store).map_url(CONTAINER, str(folder))
    return workspace, folder


@pytest.mark.long
def test_address_is_mapped_by_the_workspace_settings(tmp_path: Path) -> None:
    first, folder = _mapped(tmp_path, "first")
    second, _ = _mapped(tmp_path, "second")
    with contextlib.closing(first), contextlib.closing(second):
        assert url_map.map_url(f"{CONTAINER}/x.csv") == str(tmp_path / "second-data" / "x.csv")
        for where in (first, first.opened):
            store = Datastore.register_azure_blob_container(
                where, "st", "box", "account", overwrite=True
            )
            assert store.record.settings["root"] == str(folder)
        unlisted = Dataset.File.from_files(f"{CONTAINER}/x.csv", validate=False)
        (entry,) = unlisted.register(first, "x").manifest
        assert f"/{entry.key}" == str(folder / "x.csv")


def test_opening_a_workspace_to_serve_it_maps_no_addresses(tmp_path: Path) -> None:
    _mapped(tmp_path, "first")[0].close()
    with open_workspace(tmp_path / "first", create=False) as served:
        assert url_map.map_url(f"{CONTAINER}/x.csv") is None
        assert Workspace.list() is not None and url_map.map_url(f"{CONTAINER}/x.csv") is None
        served.map_addresses()
        assert url_map.map_url(f"{CONTAINER}/x.csv") is not None
    assert url_map.map_url(f"{CONTAINER}/x.csv") is None


def test_a_moved_workspace_does_not_disable_the_mappings_of_others(tmp_path: Path) -> None:
    first, folder = _mapped(tmp_path, "first")
    second, _ = _mapped(tmp_path, "second")
    with contextlib.closing(first), contextlib.closing(second):
        (tmp_path / "second").rename(tmp_path / "moved")
        assert url_map.map_url(f"{CONTAINER}/x.csv") == str(folder / "x.csv")
