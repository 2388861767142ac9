"""Ray's errors of agent calls become rayjobs errors. Only the tests import Ray."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.policy import Shape
from rayjobs.protocol.agent import (
    AgentFaultError,
    AgentLostError,
    ClusterUnreachableError,
    NotPlacedError,
)
from rayjobs.protocol.calls import FOLLOW
from tests.support.attempts import on_node


class Handle:
    """An actor's handle whose every call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Handle:
        return self

    def options(self, **_more: Any) -> Handle:
        return self

    def remote(self, *_given: Any, **_more: Any) -> Handle:
        return self

    def future(self) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_exception(self._error)
        return done


Make = Callable[[Any], Exception]


def called(make: Make) -> None:
    from ray import exceptions

    from rayjobs.engine.ray.cluster import RayAgent

    asyncio.run(RayAgent(Handle(make(exceptions))).call(FOLLOW, on_node()))


@pytest.mark.parametrize(
    "make",
    [
        lambda ray: ray.ActorDiedError(),
        lambda ray: ray.ActorUnavailableError("busy", None),
        lambda ray: ray.GetTimeoutError("slow"),
        lambda ray: ray.RaySystemError("the control service restarts"),
        lambda ray: ray.OwnerDiedError("00" * 28, None, ""),
    ],
    ids=["died", "unavailable", "slow", "system", "owner"],
)
def test_call_lost_by_ray_does_not_affect_the_attempt(make: Make) -> None:
    with pytest.raises(AgentLostError):
        called(make)


def test_rayjobs_errors_are_passed_through() -> None:
    ours = PrepareError("no", failure_class=FailureClass.DATA)
    with pytest.raises(PrepareError) as caught:
        called(lambda ray: ray.RayTaskError("f", "tb", ours))
    assert caught.value.failure_class == "data"


def test_other_errors_are_agent_failures_and_not_losses() -> None:
    with pytest.raises(AgentFaultError, match="oh"):
        called(lambda ray: ray.RayTaskError("f", "tb", KeyError("oh")))


class Table:
    """Ray's state of nodes, and of the groups that wait for them."""

    def __init__(self, port: int) -> None:
        self.row = {
            "NodeID": "n" * 56,
            "Alive": True,
            "Resources": {"CPU": 1.0},
            "NodeManagerAddress": "127.0.0.1",
            "NodeManagerPort": port,
        }

    def nodes(self) -> list[dict[str, Any]]:
        return [self.row]


def test_a_doubted_node_is_left_out_as_long_as_its_raylet_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from rayjobs.engine.ray import cluster as raycluster

    with socket.socket() as raylet:
        raylet.bind(("127.0.0.1", 0))
        table = Table(raylet.getsockname()[1])
        monkeypatch.setattr(ray, "nodes", table.nodes)
        monkeypatch.setattr(ray._private.state, "available_resources_per_node", dict)
        cluster = raycluster.RayCluster("t", tmp_path)

        async def names() -> list[str]:
            return [node.node_id for node in await cluster.nodes()]

        async def scene() -> None:
            name = str(table.row["NodeID"])
            assert await names() == [name]
            cluster.doubt(name)
            assert await names() == []  # its port is bound but does not listen
            raylet.listen()
            assert await names() == [name]  # it was suspected without reason
            raylet.close()
            assert await names() == [name]  # and is not checked again

        asyncio.run(scene())


@pytest.mark.parametrize("kind", ["RaySystemError", "RpcError"])
def test_a_call_that_ray_does_not_answer_says_nothing_about_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    import ray
    from ray import exceptions

    from rayjobs.engine.ray import cluster as raycluster

    def nodes() -> list[dict[str, Any]]:
        raise getattr(exceptions, kind)("the control service does not answer\nmore")

    monkeypatch.setattr(ray, "nodes", nodes)
    monkeypatch.setattr(ray._private.state, "available_resources_per_node", dict)
    cluster = raycluster.RayCluster("t", tmp_path)
    with pytest.raises(
        ClusterUnreachableError, match=r"Ray does not answer: .*the control service"
    ):
        asyncio.run(cluster.nodes())


def test_gpus_that_cannot_be_read_fail_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for another allocation."""
    import ray
    from ray.exceptions import GetTimeoutError

    from rayjobs.engine.ray import cluster as raycluster

    def get(_references: Any, timeout: float) -> Any:
        raise GetTimeoutError("Get timed out: some object(s) not ready.")

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(raycluster, "_gpu_ids", Handle(KeyError()))
    monkeypatch.setattr(raycluster, "PlacementGroupSchedulingStrategy", lambda *_, **__: None)
    cluster = raycluster.RayCluster("t", tmp_path)
    cluster._groups["rj-t-1"] = object()
    with pytest.raises(NotPlacedError, match="the GPUs of the allocation are unknown: Get timed"):
        asyncio.run(cluster.gpu_ids("rj-t-1", Shape(gpus=1.0)))


def test_a_group_does_not_wait_for_a_node_that_has_been_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from rayjobs.engine.ray import cluster as raycluster
    from rayjobs.engine.ray import groups
    from rayjobs.policy import Shape
    from rayjobs.protocol.agent import NotPlacedError

    table = Table(1)
    removed: list[object] = []

    class Group:
        def wait(self, _timeout_s: float) -> bool:
            assert table.row["Alive"], "a node that is gone is waited for"
            table.row["Alive"] = False
            return False

    group = Group()
    monkeypatch.setattr(ray, "nodes", table.nodes)
    monkeypatch.setattr(groups, "placement_group", lambda *_given, **_more: group)
    monkeypatch.setattr(groups, "placement_group_table", lambda _group: {})
    monkeypatch.setattr(groups, "remove_placement_group", removed.append)
    cluster = raycluster.RayCluster("t", tmp_path)
    made = cluster.create_group("g", Shape(), [str(table.row["NodeID"])], timeout_s=1e9)
    with pytest.raises(NotPlacedError, match="was lost before"):
        asyncio.run(made)
    assert removed == [group]
