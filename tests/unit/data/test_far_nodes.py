"""Local folders as datastores, on nodes that do not share the target's disk: refused, named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.datastore import Datastore
from rayjobs.node.data import NodeData
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import LaunchRequest
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import data_request


@pytest.fixture
def workspace(short_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(short_path / "w") as opened:
        folder = short_path / "digits"
        folder.mkdir()
        (folder / "a.bin").write_bytes(b"a")
        Datastore.register_folder(opened, "digits", str(folder))
        yield opened


def request(
    workspace: OpenWorkspace, root: Path, *, boot: str | None = None, **fields: Any
) -> LaunchRequest:
    root.mkdir()
    return data_request(
        root, workspace=str(workspace.path), boot_id=boot, node=1, node_count=2, **fields
    )


def bring(given: LaunchRequest, workspace: OpenWorkspace, *, shares_disk: bool) -> dict[str, str]:
    near = Workspaces(lambda _path: workspace, shares_disk=shares_disk)
    data = NodeData(Path(given.on.root) / "cache")
    try:
        return data.bring(
            given, workspace, note=lambda *_: None, reaches=partial(near.reaches, given.on)
        )
    finally:
        data.pool.shutdown()


READS = {"x": {"source": "digits/a.bin", "mode": "download", "path_on_compute": None}}
WRITES = {
    "y": {
        "destination": "digits/made",
        "overwrite": False,
        "source_globs": (),
        "path_on_compute": None,
        "register_as": None,
    }
}


@pytest.mark.parametrize("asked", [{"inputs": READS}, {"outputs": WRITES}])
def test_node_without_shared_disk_refuses_a_local_folder_with_a_remedy(
    workspace: OpenWorkspace, tmp_path: Path, asked: dict[str, Any]
) -> None:
    given = request(workspace, tmp_path / "attempt", **asked)
    with pytest.raises(PrepareError, match="does not share it") as refused:
        bring(given, workspace, shares_disk=False)
    assert refused.value.failure_class == "data"
    for word in ("'digits'", "object storage", repr("x" if "inputs" in asked else "y")):
        assert word in str(refused.value)
    assert bring(given, workspace, shares_disk=True)


def test_on_another_machine_a_folder_at_the_same_path_is_a_network_mount(
    workspace: OpenWorkspace, short_path: Path, tmp_path: Path
) -> None:
    given = request(workspace, tmp_path / "attempt", boot="another", outputs=WRITES)
    assert bring(given, workspace, shares_disk=True)
    (short_path / "digits").rename(short_path / "moved")
    with pytest.raises(PrepareError, match="does not share it"):
        bring(given, workspace, shares_disk=True)
    assert not (short_path / "digits").exists()
