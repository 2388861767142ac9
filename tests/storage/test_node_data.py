"""A node's side of a job's data on S3: owners, reports, and cancels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.datastore import Datastore
from rayjobs.datastore.materialise import Materialised
from rayjobs.datastore.mountfiles import is_mounted
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.node import data as nodedata
from rayjobs.node.data import NodeData
from rayjobs.protocol.attempts import LaunchRequest
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.storage.node import node_folder, wait_for
from tests.storage.server import S3Server
from tests.support.attempts import data_request

pytestmark = pytest.mark.storage


@pytest.fixture
def workspace(short_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(short_path / "w") as opened:
        yield opened


@pytest.fixture
def node(short_path: Path) -> Iterator[Path]:
    yield from node_folder(short_path / "node")


@pytest.fixture
def store(s3_server: S3Server, workspace: OpenWorkspace, tmp_path: Path) -> Datastore:
    record = s3_server.record("photos")
    workspace.catalogue.add_datastore(record)
    made = Datastore.from_record(record)
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / f"{name}.bin").write_bytes(name.encode() * 1000)
    made.upload(tmp_path / "source", "data", show_progress=False)
    return made


def request(root: Path, mode: str = "mount") -> LaunchRequest:
    root.mkdir()
    fields = {"source": "photos/data", "mode": mode, "path_on_compute": None}
    return data_request(root, inputs={"data": fields}, marker=f"m-{root.name}")


class Notes:
    def __init__(self) -> None:
        self.kept: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        self.kept.append((kind, text, data))


def held_of(root: Path) -> Materialised:
    (held,) = json.loads((root / "data.json").read_text())["held"]
    return Materialised.from_json(held)


def test_input_is_mounted_reported_and_released(
    workspace: OpenWorkspace, store: Datastore, node: Path, tmp_path: Path
) -> None:
    data, notes = NodeData(node), Notes()
    launch = request(tmp_path / "a1")
    variables = data.bring(launch, workspace, note=notes)
    folder = variables["AZUREML_DATAREFERENCE_data"]
    assert variables["RAYJOBS_INPUT_DATA"] == variables["data"] == folder
    assert sorted(os.listdir(folder)) == ["a.bin", "b.bin"]
    ((kind, text, facts),) = notes.kept
    assert (kind, facts["how"], facts["files"], facts["bytes"]) == ("input", "mounted", 2, 2000)
    assert facts["version"].startswith("sha256:")
    assert "mounted photos/data (2 files" in text
    assert data.facts(tmp_path / "a1") == DataFacts(mounted=("data",), paths=(folder,))
    point = Path(held_of(tmp_path / "a1").mount_folder) / "files"
    data.release(tmp_path / "a1")
    data.release(tmp_path / "a1")
    assert not is_mounted(point)
    assert not os.path.lexists(folder)


def test_job_history_reports_missing_fuse(
    workspace: OpenWorkspace,
    store: Datastore,
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATASTORE_NO_FUSE", "1")
    data, notes = NodeData(node), Notes()
    variables = data.bring(request(tmp_path / "a1"), workspace, note=notes)
    assert sorted(os.listdir(variables["data"])) == ["a.bin", "b.bin"]
    assert [kind for kind, _, _ in notes.kept] == ["input", "data"]
    assert notes.kept[0][2]["how"] == "downloaded"
    assert "downloaded instead" in notes.kept[1][1]
    data.release(tmp_path / "a1")


PREPARES = """
import json, sys
from pathlib import Path
from rayjobs.injob.identity import identity_of
from rayjobs.node.data import NodeData
from rayjobs.jobs.data_facts import DataFacts
from rayjobs.protocol.attempts import LaunchRequest
from rayjobs.workspace.folder import open_workspace
node, workspace, request, pid = sys.argv[1:]
data = NodeData(Path(node))
request = LaunchRequest.from_json(json.loads(request))
data.bring(request, open_workspace(workspace), note=lambda *what: None)
data.share_with_host(Path(request.on.root), identity_of(int(pid)))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_mount_outlives_the_agent_that_made_it_as_long_as_the_host_lives(
    workspace: OpenWorkspace, store: Datastore, node: Path, tmp_path: Path
) -> None:
    host = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    root = tmp_path / "a1"
    arguments = [str(node), str(workspace.path), json.dumps(request(root).to_json()), str(host.pid)]
    agent = subprocess.Popen(
        [sys.executable, "-c", PREPARES, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert agent.stdout is not None
    assert agent.stdout.readline() == "ready\n"
    agent.kill()
    agent.communicate()
    folder = Path(held_of(root).mount_folder)
    wait_for(lambda: len(list((folder / "users").iterdir())) == 1, "the dead agent is removed")
    assert (root / "inputs" / "data" / "a.bin").read_bytes() == b"a" * 1000
    data = NodeData(node)
    data.take_over(root)
    host.kill()
    host.communicate()
    wait_for(lambda: len(list((folder / "users").iterdir())) == 1, "the dead host is removed")
    assert is_mounted(folder / "files")
    assert data.facts(root).troubles == ()
    data.release(root)
    assert not is_mounted(folder / "files")


def test_a_cancel_ends_a_download_in_the_middle(
    workspace: OpenWorkspace,
    s3_server: S3Server,
    node: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodedata, "PROGRESS_EVERY_S", 0.0)
    record = s3_server.record("photos")
    workspace.catalogue.add_datastore(record)
    (tmp_path / "source").mkdir()
    for number in range(20):
        (tmp_path / "source" / f"{number}.bin").write_bytes(os.urandom(1 << 20))
    Datastore.from_record(record).upload(tmp_path / "source", "data", show_progress=False)
    data = NodeData(node)
    launch = request(tmp_path / "a1", "download")
    messages: list[str] = []

    def cancel(kind: str, text: str, facts: Mapping[str, Any]) -> None:
        messages.append(f"{kind} {text}")
        data.stop(launch.on)

    with pytest.raises(PrepareError, match="had to end while its data was being prepared"):
        data.bring(launch, workspace, note=cancel)
    assert messages[0].startswith("transfer input data: 0/20 files")
    assert not (tmp_path / "a1" / "inputs" / "data").exists()


def test_failing_input_releases_all_other_inputs(
    workspace: OpenWorkspace, store: Datastore, node: Path, tmp_path: Path
) -> None:
    data = NodeData(node)
    launch = request(tmp_path / "a1")
    gone = replace(launch.inputs["data"], source="photos/gone")
    launch = replace(launch, inputs={**launch.inputs, "gone": gone})
    with pytest.raises(PrepareError, match="input 'gone': there is nothing at 'gone'") as caught:
        data.bring(launch, workspace, note=Notes())
    assert caught.value.failure_class == "data"
    assert not is_mounted(Path(held_of(tmp_path / "a1").mount_folder) / "files")
    assert not os.path.lexists(tmp_path / "a1" / "inputs" / "data")
