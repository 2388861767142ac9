"""A workspace through Ray: the same store and blobs, locally and remotely."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, RayjobsError, StoreError, UsageError
from rayjobs.data import pins
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.errors import DatastoreError
from rayjobs.engine import workspace_server
from rayjobs.engine.workspace_server import WorkspaceServer
from rayjobs.injob.messages import MessageError
from rayjobs.node import remote_workspace
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.workspaces import WorkspaceFacts
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.blobs import blob_key
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from rayjobs.workspace.s3_address import S3Address
from tests.support.attempts import on_node


@pytest.fixture
def near(short_path: Path) -> OpenWorkspace:
    return open_workspace(short_path / "w" / ".rayjobs", create=True)


@pytest.fixture
def far(near: OpenWorkspace, monkeypatch: pytest.MonkeyPatch) -> OpenWorkspace:
    """The workspace as a node sees it; transferred values are pickled, as with Ray."""
    server = WorkspaceServer()

    def ask(_target: str, method: str, *given: Any) -> Any:
        arguments = pickle.loads(pickle.dumps(given))
        try:
            return pickle.loads(pickle.dumps(getattr(server, method)(*arguments)))
        except (RayjobsError, DatastoreError) as error:
            raise pickle.loads(pickle.dumps(error)) from error

    monkeypatch.setattr(remote_workspace, "ask_target", ask)
    monkeypatch.setattr(workspace_server, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(remote_workspace, "CHUNK_BYTES", 1000)
    return remote_workspace.open_remote("pool", str(near.path))


def test_the_address_of_files_in_s3_is_sent_without_its_empty_fields() -> None:
    facts = WorkspaceFacts("i", "n", S3Address("bucket", "prefix"))
    sent = {"id": "i", "name": "n", "blobs": {"bucket": "bucket", "prefix": "prefix"}}
    assert facts.to_json() == sent
    assert WorkspaceFacts.from_json({**sent, "of_a_later_version": 1}) == facts
    with pytest.raises(MessageError, match="an S3 address is one JSON object"):
        WorkspaceFacts.from_json({**sent, "blobs": "s3://bucket"})


def test_records_are_the_same_on_both_sides(near: OpenWorkspace, far: OpenWorkspace) -> None:
    spec = JobSpec(script="train.py", name="t")
    job, _ = near.store.submit(NewJob(spec=spec, experiment="t", snapshot=None, user="u"))
    assert (far.id, far.name) == (near.id, near.name)
    assert far.store.job(job.id) == job
    far.store.add_event(job.id, "note", "from afar")
    assert near.store.events(job.id)[-1].message == "from afar"
    with pytest.raises(NotFoundError, match="nobody"):
        far.store.job("nobody")
    assert far.catalogue.datastore("workspaceblobstore").kind == "local"


def test_inputs_are_found_remotely_as_locally(near: OpenWorkspace, far: OpenWorkspace) -> None:
    stored = near.catalogue.datastore("workspaceblobstore")
    folder = Path(stored.settings["root"]) / "digits"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("digits")
    Dataset.File.from_files((Datastore.from_record(stored), "digits")).register(
        near.catalogue, "digits"
    )
    for source in ("dataset:digits:1", "workspaceblobstore/digits"):
        given = {"source": source, "mode": "download"}
        assert pins.resolve(far, "x", **given) == pins.resolve(near, "x", **given)
    for workspace in (near, far):
        with pytest.raises(DatastoreError, match="nowhere"):
            pins.resolve(workspace, "x", source="nowhere/x", mode="download")


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5000])
def test_files_are_sent_in_pieces_and_arrive_complete(
    near: OpenWorkspace, far: OpenWorkspace, tmp_path: Path, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(index % 251 for index in range(size)))
    blob = far.blobs.add_file(source)
    assert blob.key == blob_key(blob.digest)
    assert near.blobs.size(blob.key) == size == far.blobs.size(blob.key)
    got = far.blobs.get_to(blob.key, tmp_path / "got", digest=blob.digest)
    assert (got.size, (tmp_path / "got").read_bytes()) == (size, source.read_bytes())
    with far.blobs.open(blob.key) as stream:
        assert stream.read() == source.read_bytes()
    assert far.blobs.put_file(source, "logs/x").key == "logs/x"
    assert list(far.blobs.list("logs/")) == ["logs/x"]
    assert far.blobs.delete("logs/x") and not far.blobs.exists("logs/x")
    assert not list((near.path / "blobs" / ".tmp").iterdir())


def test_data_damaged_in_transit_leaves_nothing(
    near: OpenWorkspace, far: OpenWorkspace, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    blob = far.blobs.add_file(source)
    wrong = "sha256:" + "0" * 64
    with pytest.raises(StoreError, match="damaged"):
        far.blobs.get_to(blob.key, tmp_path / "got", digest=wrong)
    with pytest.raises(StoreError):
        far.blobs.put_file(source, "logs/x", digest=wrong)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["source"]
    assert not near.blobs.exists("logs/x")


def test_only_workspace_calls_are_allowed(near: OpenWorkspace) -> None:
    server = WorkspaceServer()
    for part, method in (("path", "unlink"), ("store", "_database"), ("blobs", "__class__")):
        with pytest.raises(UsageError, match="has no"):
            server.call(str(near.path), part, method, (), {})
    with pytest.raises(UsageError, match="not an upload"):
        server.keep(str(near.path), "../x", None, None)


@pytest.mark.parametrize(
    ("facts", "shares_disk", "is_far"),
    [
        ({}, True, False),
        ({"boot_id": "another machine's"}, True, True),
        ({}, False, True),
        ({"workspace": "/nowhere/.rayjobs"}, True, True),
    ],
)
def test_path_alone_does_not_prove_a_shared_disk(
    near: OpenWorkspace, facts: dict[str, str], shares_disk: bool, is_far: bool
) -> None:
    opened: list[str] = []

    def open_far(path: str) -> OpenWorkspace:
        opened.append(path)
        return near

    workspaces = Workspaces(open_far, shares_disk=shares_disk)
    workspaces.of(on_node(**{"workspace": str(near.path), **facts}))
    assert bool(opened) is is_far
