"""The answers on a target's wake socket: read from every version, and complete."""

from __future__ import annotations

import inspect
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import rayjobs
from rayjobs.engine.actor import TargetActor
from rayjobs.injob.session_steps import SessionReply
from rayjobs.server.targets import OF_A_JOB, READ
from rayjobs.target import wake_client
from rayjobs.target.answers import (
    ANSWERS,
    ForwardedAnswer,
    RetireAnswer,
    SessionAnswer,
    StatusAnswer,
    TargetAnswer,
)
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace import plain
from tests.fakes.world import World, play
from tests.unit.target.actor_double import answering

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"
# What the first version answered, by operation.
FIRST: dict[str, dict[str, Any]] = {
    "status": {
        "target": "local",
        "live": ["/w::a"],
        "waiting": {"/w::b": {"reason": "waits", "position": 1, "rule": "line"}},
        "scaling": {"/w::c": {"reason": "waits for nodes", "up": 0, "nodes": 1}},
        "nodes": [{"node_id": "n", "address": "1.2.3.4", "cpus": 4.0, "free_cpus": 1.0}],
        "allocations": [
            {
                "name": "rj-1",
                "shape": {"nodes": 1, "cpus": 1.0, "gpus": 0.0, "memory": 0.0, "spread": 0.0},
                "nodes": ["n"],
                "gpus": [["0"]],
                "job": None,
                "draining": False,
            }
        ],
        "workspaces": ["/w"],
        "refused": {"/v": "it is a copy"},
    },
    "explain": {"decision": {"key": "/w::b", "rule": "line", "change": {"nodes": 1.0}}},
    "wake": {"served": True},
    "sees": {"sees": ["TOKEN"]},
    "evict": {"attempt": 2},
    "stacks": {
        "attempt": 2,
        "ranks": [
            {
                "rank": 0,
                "state": "S",
                "how": "proc",
                "where": "a.py:1",
                "waits": False,
                "text": "dump",
                "node": 1,
            }
        ],
    },
    "store": {"done": True, "problems": ["x is gone."]},
    "session": {"reply": {"error": "", "at": 3, "events": [{"stream": 1, "data": "eA=="}]}},
    "retire": {"busy": True, "live": 1, "grace_s": 30.0},
}
IDENTITY = {"ok": True, "version": "0.1.0", "epoch": "e1", "pid": 7}


def _holds(new: Any, old: Any) -> bool:
    """Whether JSON data has everything that older data has."""
    if isinstance(old, dict):
        return all(name in new and _holds(new[name], one) for name, one in old.items())
    if isinstance(old, list):
        return len(new) == len(old) and all(map(_holds, new, old))
    return bool(new == old)


@pytest.mark.parametrize("operation", ANSWERS)
def test_answers_of_the_first_version_are_read_and_keep_their_keys(operation: str) -> None:
    first = {**IDENTITY, **FIRST.get(operation, {})}
    answer = ANSWERS[operation].from_json({**first, "of_a_later_version": 1})
    assert (answer.ok, answer.version, answer.epoch, answer.pid) == (True, "0.1.0", "e1", 7)
    assert _holds(json.loads(json.dumps(answer.to_json())), first)


@pytest.mark.parametrize("operation", ANSWERS)
def test_every_operation_can_be_refused_without_further_fields(operation: str) -> None:
    answer = ANSWERS[operation].from_json({"ok": False, "error": "no"})
    assert (answer.ok, answer.error, answer.stopping) == (False, "no", False)


def test_a_missing_fact_is_not_taken_for_none_or_success() -> None:
    assert RetireAnswer.from_json({"ok": False}).busy is None
    assert SessionAnswer.from_json({"ok": True}).reply.error
    assert SessionAnswer(reply=SessionReply()).to_json()["reply"]["error"] == ""


@pytest.mark.parametrize("given", [[], {"ok": True, "live": 3}, {"ok": True, "nodes": [[]]}])
def test_an_unreadable_answer_counts_as_a_refusal(short_path: Path, given: Any) -> None:
    path = short_path / "s"
    with answering(path, lambda _: given):
        answer = wake_client.ask(path, TargetRequest("status"), StatusAnswer)
    assert answer is not None
    assert not answer.ok
    assert answer.error.startswith("the answer cannot be read: ")


def test_the_actor_answers_every_operation_by_its_class(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        actor = TargetActor.__new__(TargetActor)
        actor.epoch = "e1"
        actor._engine = here.engine
        for operation, kind in ANSWERS.items():
            answer = await actor._answer(TargetRequest(operation).to_json())
            assert "unknown operation" not in answer.error
            assert type(answer) is kind or (type(answer) is TargetAnswer and not answer.ok)
            assert (answer.epoch, bool(answer.version), answer.pid > 0) == ("e1", True, True)
            here.engine.resume()
        unknown = await actor._answer({"op": "dance"})
        assert (unknown.ok, unknown.error) == (False, "unknown operation 'dance'")

    play(scene, tmp_path)


def test_the_actor_gives_ray_its_identity_as_on_the_socket() -> None:
    actor = TargetActor.__new__(TargetActor)
    actor.epoch, actor._error, actor._ready = "e1", None, threading.Event()
    actor._ready.set()
    answer = TargetAnswer.from_json(actor.ping())
    assert (answer.ok, answer.epoch, answer.pid, answer.version) == (
        True,
        "e1",
        os.getpid(),
        rayjobs.__version__,
    )


def test_the_documents_name_every_operation() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8").partition("## The wake socket")[2]
    rows = re.findall(r"^\| (`\{.*?) \| ", text.partition("\n## ")[0], re.MULTILINE)
    values = [value for row in rows for value in re.findall(r'"op": ([^,}]*)', row)]
    assert {word for value in values for word in re.findall(r"\w+", value)} == set(ANSWERS)
    described = (inspect.getdoc(TargetRequest) or "").partition("op: ")[2]
    assert set(re.findall(r'"(\w+)"', described.partition("workspace:")[0])) == set(ANSWERS)


def test_a_server_describes_the_answers_that_it_passes_on() -> None:
    named: dict[str, Any] = {}
    plain.schema(ForwardedAnswer, named)
    described = str(named["ForwardedAnswer"])
    for operation in (*READ, *OF_A_JOB):
        assert f"#/components/schemas/{ANSWERS[operation].__name__}'" in described
