"""A workspace of several machines: created, joined, claimed by one target, woken by the others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from rayjobs.core.errors import ServedElsewhereError, StoreError, UsageError
from rayjobs.jobs.serving import Claimant
from rayjobs.store import postgres_watch
from rayjobs.store import serving as in_store
from rayjobs.store.sql import SqlStore
from rayjobs.target import elsewhere, starting
from rayjobs.target.condition import Standing
from rayjobs.target.revive import look_after
from rayjobs.workspace import shared
from rayjobs.workspace.folder import OpenWorkspace, open_workspace, store_address
from rayjobs.workspace.s3_address import S3Address
from tests.contract.store_contract import submit
from tests.storage.blobs import address_in, given_keys
from tests.storage.postgres import Postgres
from tests.storage.server import S3Server
from tests.storage.test_postgres_store import end_connections

__all__ = ["given_keys"]

pytestmark = [
    pytest.mark.storage,
    pytest.mark.xdist_group("storage"),
    pytest.mark.usefixtures("given_keys"),
]

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def blobs(s3_server: S3Server) -> S3Address:
    return address_in(s3_server)


@pytest.fixture
def first(server: Postgres, blobs: S3Address, tmp_path: Path) -> Iterator[OpenWorkspace]:
    with shared.create(tmp_path / "one" / "team", server.url, blobs=blobs).workspace as opened:
        yield opened
    elsewhere.close_all()


def store_of(workspace: OpenWorkspace) -> str:
    return str(store_address(workspace.path))


def claimant(name: str) -> Claimant:
    return Claimant(owner=name, host=f"host-{name}", home=f"/home/{name}", version="1")


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


# --- creating and joining ------------------------------------------------------------------------


def test_the_same_addresses_lead_to_the_same_workspace(
    server: Postgres, first: OpenWorkspace, blobs: S3Address, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    blob = first.blobs.add_file(tmp_path / "model")
    job = submit(first.store)
    by_both = shared.create(tmp_path / "two", server.url, blobs=blobs)
    by_schema = shared.create(tmp_path / "three", store_of(first))
    by_store = shared.join(tmp_path / "four", store_of(first))
    for made in (by_both, by_schema, by_store):
        with made.workspace as other:
            assert made.joined
            assert (other.id, other.name) == (first.id, "team")
            assert [one.id for one in other.store.jobs()] == [job.id]
            with other.blobs.open(blob.key) as file:
                assert file.read() == b"weights"
            kinds = {one.name: one.kind for one in other.catalogue.datastores()}
            assert kinds["workspaceblobstore"] == "s3"
    with open_workspace(tmp_path / "two") as again:  # not taken for a copy of the first
        assert again.original is None


def test_one_prefix_is_never_two_workspaces(
    server: Postgres, first: OpenWorkspace, blobs: S3Address, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"contains the files of the workspace team .*to join it"):
        shared.create(tmp_path / "two", server.schema(), blobs=blobs)
    assert not (tmp_path / "two").exists()
    other = S3Address(blobs.bucket, f"{blobs.prefix}-2", blobs.endpoint)
    with pytest.raises(UsageError, match=r"has its files in .* leave out --blobs"):
        shared.create(tmp_path / "two", store_of(first), blobs=other)
    assert not (tmp_path / "two").exists()


def test_unreachable_services_leave_nothing(
    server: Postgres, blobs: S3Address, tmp_path: Path
) -> None:
    unreachable = S3Address("bucket", "w", "http://127.0.0.1:9")
    url = server.schema()
    with pytest.raises(StoreError, match="are not available"):
        shared.create(tmp_path / "w", url, blobs=unreachable)
    assert not (tmp_path / "w").exists()
    with shared.create(tmp_path / "w", url, blobs=blobs).workspace as opened:  # a new try works
        assert not opened.store.jobs()


def test_a_store_that_does_not_exist_is_not_joined(
    server: Postgres, first: OpenWorkspace, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="there is no workspace store at"):
        shared.join(tmp_path / "two", server.schema())
    with pytest.raises(UsageError, match=r"add \?schema=NAME"):
        shared.join(tmp_path / "two", server.url)
    with psycopg.connect(server.url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_namespace WHERE nspname = 'rayjobs'"
        ).fetchone()
    assert found == (0,)


def test_files_of_another_workspace_are_not_joined(
    server: Postgres, first: OpenWorkspace, tmp_path: Path
) -> None:
    first.blobs._put("", "workspace.json", json.dumps({"id": "other"}).encode())  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="belongs to the workspace with the id other"):
        shared.join(tmp_path / "two", store_of(first))
    assert not (tmp_path / "two").exists()


# --- claims --------------------------------------------------------------------------------------


def test_first_home_to_claim_a_target_owns_it(first: OpenWorkspace) -> None:
    store = first.store
    assert store.serving("local") is None
    assert store.claim_target("local", epoch="1", claimant=claimant("a")) == 1
    with pytest.raises(ServedElsewhereError, match="runs on host-a"):
        store.claim_target("local", epoch="x", claimant=claimant("b"))
    assert store.target_epoch("local") == (1, "1")
    assert store.claim_target("local", epoch="2", claimant=claimant("a")) == 2  # its next actor
    assert store.claim_target("other", epoch="x", claimant=claimant("b")) == 1


def test_one_of_two_concurrent_claimants_wins(first: OpenWorkspace) -> None:
    barrier, won, lost = threading.Barrier(8), [], []

    def claim(name: str) -> None:
        with SqlStoreOf(first) as store:
            barrier.wait()
            try:
                store.claim_target("local", epoch=name, claimant=claimant(name))
                won.append(name)
            except ServedElsewhereError:
                lost.append(name)

    threads = [threading.Thread(target=claim, args=(f"m{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    assert first.store.target_epoch("local") == (1, won[0])


class SqlStoreOf:
    """A separate store for a thread."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._store = SqlStore(store_of(workspace))

    def __enter__(self) -> SqlStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_a_take_over_waits_for_the_end_of_the_other_and_fences_it(first: OpenWorkspace) -> None:
    store = first.store
    store.claim_target("local", epoch="1", claimant=claimant("a"))
    with pytest.raises(UsageError, match="runs on host-a: stop it there first"):
        store.take_over("local", claimant("b"))
    make_silent(first)
    with pytest.raises(ServedElsewhereError, match="take-over local"):  # only on request
        store.claim_target("local", epoch="x", claimant=claimant("b"))
    before = store.take_over("local", claimant("b"))
    assert before is not None and before.claimant.owner == "a"
    # The old actor wakes up: whatever it starts is refused, and so is its next claim.
    job = submit(store)
    assert store.target_epoch("local") == (2, "")
    assert store.start(job.id, attempt=0, allocation="x", epoch="1") is None
    with pytest.raises(ServedElsewhereError, match="host-b"):
        store.claim_target("local", epoch="1", claimant=claimant("a"))
    assert store.claim_target("local", epoch="2", claimant=claimant("b")) == 3


def make_silent(workspace: OpenWorkspace, target: str = "local") -> None:
    """Let a target appear silent for a minute."""
    key = in_store.ALIVE + target
    value = json.loads(str(workspace.store.meta(key)))
    workspace.store.set_meta(key, json.dumps({**value, "at": value["at"] - 60}))


# --- other machines ------------------------------------------------------------------------------


@pytest.fixture
def woken(first: OpenWorkspace) -> Iterator[list[float]]:
    """The times at which the serving target of another home was woken."""
    times: list[float] = []
    with SqlStoreOf(first) as store:
        store.claim_target("local", epoch="1", claimant=claimant("a"))
        store.watch_wakes("local", epoch="1", wake=lambda: times.append(time.monotonic()))
        while not times:  # until it listens
            first.store.wake_target("local")
            time.sleep(0.05)
        time.sleep(0.3)  # for wake-ups sent meanwhile
        times.clear()
        yield times


def test_a_target_elsewhere_is_woken_and_none_is_started(
    first: OpenWorkspace, woken: list[float], own_home: Path
) -> None:
    assert starting.wake("local", home=own_home, workspace=first.path)
    until(lambda: len(woken) == 1)
    status = starting.ensure_target("local", home=own_home, workspace=first.path)
    assert (status.served, status.was_started, status.epoch) == (True, False, "1")
    until(lambda: len(woken) == 2)
    condition = look_after("local", home=own_home, workspace=first.path)
    assert condition.standing is Standing.RUNNING
    assert condition.reason == "target 'local' of this workspace runs on host-a"
    assert not (own_home / "targets" / "local" / "log").exists()


def test_wake_ups_of_other_targets_are_ignored(first: OpenWorkspace, woken: list[float]) -> None:
    first.store.wake_target("other")
    first.store.wake_target("local")
    until(lambda: len(woken) == 1)
    assert len(woken) == 1


def test_a_target_that_died_elsewhere_is_not_started_here(
    first: OpenWorkspace, own_home: Path
) -> None:
    first.store.claim_target("local", epoch="1", claimant=claimant("a"))
    make_silent(first)
    for call in (starting.wake, starting.ensure_target):
        with pytest.raises(ServedElsewhereError, match=r"does not run there .*take-over local"):
            call("local", home=own_home, workspace=first.path)
    condition = look_after("local", home=own_home, workspace=first.path)
    assert condition.standing is Standing.ELSEWHERE
    assert not (own_home / "targets" / "local" / "log").exists()


def test_target_of_this_home_is_local(first: OpenWorkspace, own_home: Path) -> None:
    own = elsewhere.claimant(own_home)
    assert elsewhere.claimant(own_home) == own
    first.store.claim_target("local", epoch="1", claimant=own)
    assert elsewhere.find(first.path, "local", home=own_home) is None
    assert elsewhere.find(first.path, "local", home=own_home / "other") is not None


# --- lost connections ----------------------------------------------------------------------------


def test_lost_wake_up_is_delivered_with_the_next_connection(
    server: Postgres, first: OpenWorkspace, woken: list[float]
) -> None:
    end_connections(server)  # wake-ups sent from here on are lost until it listens again
    until(lambda: len(woken) >= 1)
    before = len(woken)
    first.store.wake_target("local")
    until(lambda: len(woken) > before)


def test_a_target_stays_alive_over_a_restart_of_the_server(
    server: Postgres,
    first: OpenWorkspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_watch, "BEAT_S", 0.3)
    with SqlStoreOf(first) as store:
        store.claim_target("local", epoch="1", claimant=claimant("a"))
        store.watch_wakes("local", epoch="1", wake=lambda: None)
        server.kill()
        server.start()
        make_silent(first)
        until(lambda: (found := store.serving("local")) is not None and found.is_live)


def test_heartbeats_of_an_old_actor_are_ignored(
    first: OpenWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_watch, "BEAT_S", 0.001)  # at each turn
    woken: list[int] = []
    with SqlStoreOf(first) as store:
        store.claim_target("local", epoch="old", claimant=claimant("a"))
        store.watch_wakes("local", epoch="old", wake=lambda: woken.append(1))
        until(lambda: bool(woken))
        store.claim_target("local", epoch="new", claimant=claimant("a"))
        make_silent(first)
        for _ in range(3):  # it listens and sends heartbeats meanwhile
            woken.clear()
            store.wake_target("local")
            until(lambda: bool(woken))
        found = store.serving("local")
        assert found is not None and not found.is_live
