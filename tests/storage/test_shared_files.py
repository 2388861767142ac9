"""Files of a workspace in S3: pruned by references, checked, and reached from nodes."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.main import run
from rayjobs.core.errors import RayjobsError
from rayjobs.datastore.backends import s3_settings
from rayjobs.engine.workspace_server import WorkspaceServer
from rayjobs.housekeeping import prune, workspace_check
from rayjobs.housekeeping.prune import Rules
from rayjobs.jobs.records import Job
from rayjobs.node import remote_workspace
from rayjobs.node.remote_workspace import RemoteBlobs
from rayjobs.results import live_logs
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import shared
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.s3_blobs import S3Blobs
from tests.contract.blob_contract import content
from tests.storage.blobs import address_in, given_keys
from tests.storage.postgres import Postgres
from tests.storage.proxy import Proxy
from tests.storage.server import S3Server
from tests.unit.results.played import begin, end

__all__ = ["given_keys"]

pytestmark = [
    pytest.mark.storage,
    pytest.mark.xdist_group("storage"),
    pytest.mark.usefixtures("given_keys"),
]

ALL = Rules(older_than_s=None, max_bytes=0)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.port) as made:
        yield made


@pytest.fixture
def workspace(
    server: Postgres, s3_server: S3Server, proxy: Proxy, tmp_path: Path
) -> Iterator[OpenWorkspace]:
    address = address_in(s3_server, endpoint=proxy.endpoint)
    with shared.create(tmp_path / "team", server.url, blobs=address).workspace as opened:
        yield opened


def submit(workspace: OpenWorkspace) -> Job:
    spec = JobSpec(script="train.py", name="t")
    return workspace.store.submit(NewJob(spec=spec, experiment="t", snapshot=None, user="u"))[0]


def run_job(workspace: OpenWorkspace, root: Path, output: bytes) -> Job:
    job = submit(workspace)
    paths = begin(workspace, job, root)
    (paths.work / "outputs").mkdir()
    (paths.work / "outputs" / "model").write_bytes(output)
    end(workspace, job, root)
    return job


# --- prune ---------------------------------------------------------------------------------------


def test_prune_follows_references(workspace: OpenWorkspace, tmp_path: Path) -> None:
    old = run_job(workspace, tmp_path / "a1", b"old")
    new = run_job(workspace, tmp_path / "a2", b"new")
    unfinished = submit(workspace)
    for job in (old, unfinished):  # of an agent that died before it could remove them
        workspace.blobs.put_bytes(b"x", f"{live_logs.folder(job.id, 1, 0)}{0:016d}-{1:016d}")
    workspace.blobs.put_bytes(b"not ours", "other/thing")
    (tmp_path / "source").write_bytes(b"without any reference")
    stray = workspace.blobs.add_file(tmp_path / "source").key
    kept = {one.blob for one in workspace.store.files(new.id)}
    rules = Rules(older_than_s=None, max_bytes=0, keep=1)
    assert not prune.plan(workspace, rules).going  # all files are younger than an hour
    grace_s = -7200.0  # as if it were two hours later
    made = prune.plan(workspace, rules, grace_s=grace_s)
    assert [unit.id for unit in made.units] == [old.id]
    removed = prune.apply(workspace, made, grace_s=grace_s)
    left = set(workspace.blobs.list())
    live = {key for key in left if live_logs.job_of(key) == unfinished.id}
    assert left == kept | live | {"other/thing"} and len(live) == 1
    assert stray not in left and removed.files == len(made.going) and removed.bytes > 0
    assert workspace.store.files(old.id) == []
    assert content(workspace.blobs, min(kept))


def test_prune_keeps_files_of_an_unavailable_bucket(
    workspace: OpenWorkspace, proxy: Proxy, tmp_path: Path, quick: None
) -> None:
    job = run_job(workspace, tmp_path / "a1", b"old")
    made = prune.plan(workspace, ALL, grace_s=-7200.0)
    files = len(made.going)
    proxy.lose()
    with pytest.raises(RayjobsError, match="are not available"):
        prune.apply(workspace, made, grace_s=-7200.0)
    proxy.come_back()
    assert workspace.store.files(job.id) == []  # rows go first
    made = prune.plan(workspace, ALL, grace_s=-7200.0)
    assert len(made.going) == files  # the next prune finds the remaining files
    assert prune.apply(workspace, made, grace_s=-7200.0).files == files


@pytest.fixture
def quick(workspace: OpenWorkspace) -> None:
    """Let the workspace's client wait for seconds instead of minutes."""
    assert isinstance(workspace.blobs, S3Blobs)
    backend = workspace.blobs._backend()
    backend.settings = backend.settings.quick()


# --- check ---------------------------------------------------------------------------------------


def test_a_workspace_is_checked(
    workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(workspace.path))
    assert run(["workspace", "check", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["problems"] == [] and values["jobs"] == 0
    assert values["server"].startswith("PostgreSQL 1")
    assert list(workspace.blobs.list()) == []  # the check leaves nothing
    assert workspace.store.meta_under("meta:") == {}
    assert run(["workspace", "check"]) == 0
    assert "can be used" in capsys.readouterr().out
    assert run(["workspace", "show"]) == 0
    assert "rayjobs workspace add FOLDER --store 'postgresql" in capsys.readouterr().out


def test_a_check_names_each_problem(
    workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch, proxy: Proxy, quick: None
) -> None:
    blobs = workspace.blobs
    assert isinstance(blobs, S3Blobs)
    blobs._put("", "workspace.json", json.dumps({"id": "other"}).encode())
    assert "is not recorded as this workspace's" in problems(workspace)
    plain = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: plain() + 3600)
        assert problems(workspace).count("1h ahead of that of the") == 2
    with monkeypatch.context() as patched:
        patched.setattr(S3Blobs, "_remove", lambda *_: None)
        assert "a file cannot be removed" in problems(workspace)
    proxy.lose()
    assert "are not available" in problems(workspace)


def problems(workspace: OpenWorkspace) -> str:
    return "\n".join(workspace_check.look(workspace).problems)


# --- nodes ---------------------------------------------------------------------------------------


@pytest.fixture
def passed(workspace: OpenWorkspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the target of a node without the target's disk."""
    served, calls = WorkspaceServer(), []

    def ask(_target: str, method: str, *given: Any) -> Any:
        calls.append(method)
        arguments = pickle.loads(pickle.dumps(given))
        try:
            return pickle.loads(pickle.dumps(getattr(served, method)(*arguments)))
        except RayjobsError as error:
            raise pickle.loads(pickle.dumps(error)) from error

    monkeypatch.setattr(remote_workspace, "ask_target", ask)
    return calls


def test_a_node_with_keys_uses_the_bucket_itself(
    workspace: OpenWorkspace, passed: list[str], tmp_path: Path
) -> None:
    far = remote_workspace.open_remote("pool", str(workspace.path), scratch=tmp_path / "node")
    assert isinstance(far.blobs, S3Blobs)
    assert far.blobs_address == workspace.blobs_address
    far.blobs.put_bytes(b"from the node", "a")
    assert content(workspace.blobs, "a") == b"from the node"
    assert content(far.blobs, "a") == b"from the node"
    assert passed == ["about"]


def test_a_node_without_keys_goes_through_the_target(
    workspace: OpenWorkspace, passed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_here = b"of this machine" * 1000
    with monkeypatch.context() as patched:  # the node has other keys, or none
        patched.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        s3_settings._session.cache_clear()
        far = remote_workspace.open_remote("pool", str(workspace.path), scratch=tmp_path / "node")
        assert isinstance(far.blobs, RemoteBlobs)
    s3_settings._session.cache_clear()  # from here on, the target's keys are used
    (tmp_path / "source").write_bytes(content_here)
    blob = far.blobs.add_file(tmp_path / "source")
    assert content(workspace.blobs, blob.key) == content_here
    assert content(far.blobs, blob.key) == content_here
    assert far.blobs_address == workspace.blobs_address  # so it sends its logs while they grow
