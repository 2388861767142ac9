"""When an agent leaves, and that no request to it is lost."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import UsageError
from rayjobs.injob.identity import own_identity
from rayjobs.node import linger as module
from rayjobs.node.linger import PREPARED_S, Linger
from rayjobs.protocol.agent import AgentLeavingError, AgentLostError
from rayjobs.protocol.calls import FREE_PORT, HELLO, Nothing, Port
from rayjobs.target.node_settings import CLUSTER_LINGER_S, LOCAL_LINGER_S, NodeSettings
from tests.support.attempts import on_node


class Time:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


def write_host(root: Path, pid: int, start_time: int) -> None:
    me = own_identity()
    host = {"socket": "/nowhere", "pid": pid, "start_time": start_time, "boot_id": me.boot_id}
    (root / "host.json").write_text(json.dumps(host))


def test_agent_leaves_after_a_time_without_calls(time: Time) -> None:
    linger = Linger(30.0, time)
    assert linger.due_in_s() == 30.0
    time.now_s += 29.0
    with linger.call():
        time.now_s += 100.0
        assert linger.due_in_s() > 0
    assert linger.due_in_s() == 30.0
    time.now_s += 30.0
    assert linger.due_in_s() == 0


def test_agent_stays_for_an_attempt_waiting_for_its_launch(time: Time, tmp_path: Path) -> None:
    linger = Linger(30.0, time)
    linger.expect(on_node(tmp_path))
    time.now_s += PREPARED_S - 1
    assert linger.due_in_s() > 0
    linger.drop(on_node(tmp_path))
    assert linger.due_in_s() == 0


def test_agent_does_not_wait_forever_for_a_launch(time: Time, tmp_path: Path) -> None:
    linger = Linger(30.0, time)
    linger.expect(on_node(tmp_path))
    time.now_s += PREPARED_S
    assert linger.due_in_s() == 0


def test_agent_stays_while_an_unfollowed_host_lives(time: Time, tmp_path: Path) -> None:
    linger = Linger(30.0, time)
    linger.expect(on_node(tmp_path))
    me = own_identity()
    write_host(tmp_path, me.pid, me.start_time)
    time.now_s += 10 * PREPARED_S
    assert linger.due_in_s() > 0
    write_host(tmp_path, me.pid, me.start_time - 1)  # another process had this pid
    assert linger.due_in_s() == 0


def test_agent_stays_while_it_cannot_open_the_record_of_a_host(
    time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_root: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module, "host_of", full)
    linger = Linger(30.0, time)
    linger.expect(on_node(tmp_path))
    time.now_s += 10 * PREPARED_S
    assert linger.due_in_s() > 0
    monkeypatch.undo()
    assert linger.due_in_s() == 0


def test_leaving_agent_starts_nothing(time: Time) -> None:
    """Off switch: do not check `has_left` in `Linger.call`."""
    linger, done = Linger(0.0, time), []
    with linger.call():
        done.append(1)
    linger.leave()
    with pytest.raises(AgentLeavingError), linger.call():
        done.append(2)
    assert done == [1]


class Handle:
    """An actor's handle with the results of its calls, in order."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __getattr__(self, _name: str) -> Handle:
        return self

    def options(self, **_more: Any) -> Handle:
        return self

    def remote(self, *_given: Any, **_more: Any) -> Handle:
        return self

    def future(self) -> Future[Any]:
        done: Future[Any] = Future()
        answer = self.answers.pop(0)
        done.set_exception(answer) if isinstance(answer, Exception) else done.set_result(answer)
        return done


def exit_by_itself(exceptions: Any) -> Exception:
    detail = "Worker exits by an user request. exit_actor() is called."
    return exceptions.ActorUnavailableError(detail, None)  # type: ignore[no-any-return]


def known_to_have_left(exceptions: Any) -> Exception:
    class Died(exceptions.ActorDiedError):
        def __str__(self) -> str:
            return "Worker exit type: INTENDED_USER_EXIT Worker exit detail: User requested to"

    return Died()


def refused(exceptions: Any) -> Exception:
    return exceptions.RayTaskError("f", "tb", AgentLeavingError("leaving"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("left", [exit_by_itself, known_to_have_left, refused])
def test_request_to_a_leaving_agent_is_repeated_to_its_successor(
    left: Callable[[Any], Exception],
) -> None:
    """Off switch: raise `AgentLeavingError` to the caller, or treat Ray's error as a lost agent."""
    from ray import exceptions

    from rayjobs.engine.ray.cluster import RayAgent

    second = Handle({"number": 2}, {"number": 2})
    asked: list[Any] = []

    async def successor(gone: Any) -> Any:
        asked.append(gone)
        return second

    async def calls() -> list[Any]:
        agent = RayAgent(first, successor)
        answers = [await agent.call(FREE_PORT, Nothing()) for _ in range(2)]
        assert not agent.lost
        return answers

    first = Handle(left(exceptions))
    assert asyncio.run(calls()) == [Port(2), Port(2)]
    assert asked == [first]


def test_killed_agent_counts_as_lost() -> None:
    from ray import exceptions

    from rayjobs.engine.ray.cluster import RayAgent

    async def successor(_gone: Any) -> Any:
        raise AssertionError("a call that may have been carried out must not be repeated")

    agent = RayAgent(Handle(exceptions.ActorDiedError()), successor)
    with pytest.raises(AgentLostError):
        asyncio.run(agent.call(HELLO, Nothing()))
    assert agent.lost


def test_settings_have_defaults_by_kind_of_target_and_are_checked() -> None:
    assert NodeSettings.read("local", {}) == NodeSettings("auto", LOCAL_LINGER_S)
    assert NodeSettings.read("lab", {}) == NodeSettings("auto", CLUSTER_LINGER_S)
    given = {"RAYJOBS_HOLD": "scan", "RAYJOBS_AGENT_LINGER_S": "1.5"}
    assert NodeSettings.read("lab", given) == NodeSettings("scan", 1.5)
    wrong = {
        "RAYJOBS_HOLD": "rope",
        "RAYJOBS_AGENT_LINGER_S": "soon",
        "RAYJOBS_IMAGE_MOST_GIB": "0",
    }
    for name, value in wrong.items():
        with pytest.raises(UsageError, match=f"{name} is '{value}'"):
            NodeSettings.read("lab", {name: value})
