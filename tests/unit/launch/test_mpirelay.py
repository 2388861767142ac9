"""Mpirun's requests for orted reach the other nodes' hosts, and their answers reach mpirun."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray

from rayjobs.injob.answers import Answer, refusal
from rayjobs.injob.mpi_messages import MpiRequest, Relayed
from rayjobs.injob.plan import Peer, Relay
from rayjobs.launch import mpirelay
from rayjobs.node.service import NodeService
from rayjobs.protocol import calls
from rayjobs.protocol.calls import DaemonStarted, StartDaemon
from rayjobs.protocol.names import agent_name

ENDING = "the attempt is being ended on node 1"


class Host:
    """An attempt host's MPI socket, which answers each request with `answer`."""

    def __init__(self, socket: Path, answer: Callable[[MpiRequest], Answer]) -> None:
        self.socket, self.requests = str(socket), list[MpiRequest]()
        self._answer = answer

    async def __aenter__(self) -> Host:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = MpiRequest.from_json(json.loads(await reader.readline()))
        self.requests.append(request)
        writer.write(json.dumps(self._answer(request).to_json()).encode() + b"\n")
        await writer.drain()
        writer.close()


def service_of(node_id: str) -> NodeService:
    """Return an agent's service without its node."""
    service = NodeService.__new__(NodeService)
    service._target, service._node_id = "local", node_id
    return service


def answered(service: NodeService, name: str, message: Mapping[str, Any]) -> Any:
    method, answer = service._answering(calls.START_DAEMON, service._start_daemon)
    assert method == name
    return answer(json.loads(json.dumps(message)))


def test_only_the_nodes_that_refused_are_reported_to_mpirun(short_path: Path) -> None:
    def answer(request: MpiRequest) -> Answer:
        if request.op == "relay":
            return Relayed(commands={1: "orted one", 2: "orted two"})
        return Answer()

    async def start(peer: Peer, command: str) -> Answer:
        assert command == f"orted {'two' if peer.node == 2 else 'one'}"
        return refusal("the disk is full") if peer.node == 2 else Answer()

    async def relayed() -> list[MpiRequest]:
        async with Host(short_path / "h", answer) as host:
            peers = (Peer(1, "n1", "/s/1"), Peer(2, "n2", "/s/2"))
            await mpirelay.relay(Relay(host.socket, peers), start)
            return host.requests

    assert asyncio.run(relayed()) == [
        MpiRequest("relay"),
        MpiRequest("relayed", errors={2: "the disk is full"}),
    ]


@pytest.mark.parametrize("refused", ["", ENDING])
def test_an_agent_answers_whether_the_host_of_its_node_started_orted(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    first, second = service_of("n0"), service_of("n1")

    class Method:
        @staticmethod
        def remote(name: str, message: Mapping[str, Any]) -> Any:
            return answered(second, name, message)

    class Agent:
        call = Method

    def actor(name: str, namespace: str) -> type[Agent]:
        assert name == agent_name("local", "n1")
        return Agent

    async def started() -> tuple[Answer, list[MpiRequest]]:
        async with Host(short_path / "h", lambda _: Answer(not refused, refused)) as host:
            found = await first._start_daemon_elsewhere(Peer(1, "n1", host.socket), "orted")
            return found, host.requests

    monkeypatch.setattr(ray, "get_actor", actor)
    found, requests = asyncio.run(started())
    assert (found.ok, found.error) == (not refused, refused)
    assert requests == [MpiRequest("daemon", command="orted")]


def test_a_host_that_is_gone_is_an_answer_too(short_path: Path) -> None:
    message = StartDaemon(str(short_path / "none"), "orted").to_json()
    answer = asyncio.run(answered(service_of("n1"), "start_daemon", message))
    found = DaemonStarted.from_json(answer)
    assert not found.is_started
    assert found.why_not.startswith("the attempt host cannot be asked to start orted")


def test_an_agent_that_does_not_exist_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def actor(name: str, namespace: str) -> None:
        raise ValueError(f"no actor {name}")

    monkeypatch.setattr(ray, "get_actor", actor)
    found = asyncio.run(service_of("n0")._start_daemon_elsewhere(Peer(1, "n1", "/s"), "orted"))
    assert not found.ok
    assert found.error.startswith("the agent of node 1 cannot be reached: no actor")
