"""While the server of its records or files is unavailable, the end of an attempt waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import StoreError, StoreUnreachableError
from rayjobs.jobs.records import Job
from rayjobs.node.collect import Collecting
from rayjobs.node.data import NodeData
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.store.sql import SqlStore
from rayjobs.workspace.blobs import FolderBlobs
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import on_node
from tests.unit.results.played import begin


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[OpenWorkspace]:
    with open_workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
def job(workspace: OpenWorkspace) -> Job:
    job, _ = workspace.store.submit(
        NewJob(spec=JobSpec(script="a.py"), experiment="e", snapshot=None, user="me")
    )
    return job


@pytest.fixture
def on(workspace: OpenWorkspace, job: Job, tmp_path: Path) -> AttemptOnNode:
    paths = begin(workspace, job, tmp_path / "a1")
    paths.driver_log(0).write_bytes(b"trained\n")
    (paths.work / "outputs").mkdir()
    (paths.work / "outputs" / "model").write_bytes(b"weights")
    return on_node(tmp_path / "a1", job=job.id, workspace=str(workspace.path))


@pytest.mark.parametrize("what", ["files", "small files", "rows"])
@pytest.mark.parametrize("error", [StoreUnreachableError, StoreError])
def test_only_an_unavailable_server_is_waited_for(
    workspace: OpenWorkspace,
    job: Job,
    on: AttemptOnNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    error: type[StoreError],
) -> None:
    collecting = Collecting(NodeData(tmp_path / "cache"), Workspaces())

    def away(*_: object, **__: object) -> None:
        raise error("the server does not answer")

    with monkeypatch.context() as patched:
        if what == "files":
            patched.setattr(FolderBlobs, "add_file", away)
        elif what == "small files":
            (Path(on.root) / "work" / "outputs" / "other").write_bytes(b"more")
            patched.setattr(FolderBlobs, "add_files", away)
        else:
            patched.setattr(SqlStore, "publish_files", away)
        found = asyncio.run(collecting.collect(on))
        assert found.problems
        is_away = error is StoreUnreachableError
        assert (found.outage is not None) is is_away, found
        assert not is_away or "does not answer" in str(found.outage)
    found = asyncio.run(collecting.collect(on))
    assert (found.problems, found.outage) == ((), None)
    stored = {one.name for one in workspace.store.files(job.id)}
    assert {"outputs/model", "azureml-logs/70_driver_log.txt"} <= stored
