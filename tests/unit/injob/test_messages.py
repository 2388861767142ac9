"""Messages and records keep their JSON across versions, and invalid ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.data_file import Registration
from rayjobs.injob.exit_record import (
    ExitRecord,
    GpuUse,
    Leftovers,
    RankExit,
    Remaining,
    UsageRecord,
)
from rayjobs.injob.host_messages import HostFile, HostRequest
from rayjobs.injob.identity import Identity, own_identity
from rayjobs.injob.lazy_dataclass import MADE_WITHOUT_INIT
from rayjobs.injob.messages import Message, MessageError
from rayjobs.injob.outcomes import EndCause, EndReason, Outcome
from rayjobs.injob.plan import Peer, Relay, parse
from rayjobs.injob.rank_stack import RankStack
from rayjobs.injob.warm_messages import WarmRequest, WarmStatus
from rayjobs.jobs.data_facts import DataFacts, Trouble
from rayjobs.jobs.hosts import Gpu, HostFacts, HostRecord
from rayjobs.jobs.outcomes import ENDS, RULES, final_state
from rayjobs.jobs.states import FINAL
from rayjobs.protocol import calls
from rayjobs.protocol.attempts import (
    InputRequest,
    Launched,
    LaunchRequest,
    OutputRequest,
    PackagesRequest,
    Resume,
    SecretSource,
)
from rayjobs.protocol.collected import Collected, RequestedModel
from rayjobs.protocol.nodes import Hello, Prepared
from rayjobs.protocol.settled import Found, Settled
from tests.support.attempts import on_node

RECORD = ExitRecord(
    job="j",
    attempt=2,
    node=0,
    marker="m",
    outcome=Outcome.CANCELED,
    reason="preempted: job b has priority 10",
    end_reason=EndReason.PREEMPTED,
    ranks=(RankExit(rank=0, pid=7, signal=15, ended_at=3.5),),
    leftovers=Leftovers(killed=1, proven_dead=False, remaining=(Remaining(8, 99, "sh"),)),
    usage=UsageRecord(t=(1.0,), cpu=(0.5,), memory=(7.0,), gpus={"0": GpuUse((None,), (1.0,))}),
)
# As version 0.1.0 wrote it.
OLD = {
    "version": 1,
    "job": "j",
    "attempt": 2,
    "node": 0,
    "marker": "m",
    "started_at": 1.0,
    "ended_at": 2.0,
    "duration_s": 1.0,
    "outcome": "canceled",
    "reason": "",
    "is_consequence": False,
    "ranks": [{"rank": 0, "pid": 7, "start_time": 5, "exit_code": 0, "signal": None,
               "started_at": 1.0, "ended_at": 2, "max_rss_bytes": 1, "out_of_memory": False,
               "log_bytes": 0, "log_dropped": 0}],
    "first_failed_rank": None,
    "leftovers": {"killed": 0, "proven_dead": True, "remaining": []},
    "tree": "cgroup2",
    "memory": {"limit_bytes": None, "how": "none", "peak_bytes": None},
    "pids": {"limit": 16384, "how": "cgroup2"},
    "cold": None,
    "usage": None,
}  # fmt: skip


def through_json(message: Message) -> Any:
    return json.loads(json.dumps(message.to_json()))


@pytest.mark.parametrize(
    "message", [RECORD, Settled.of_record(RECORD, proven=True, ended_now=False)]
)
def test_message_round_trips(message: Message) -> None:
    assert type(message).from_json(through_json(message)) == message


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("canceled", EndReason.CANCELED),
        ("preempted: job b has priority 10", EndReason.PREEMPTED),
        ("its place was lost", EndReason.UNFOLLOWED),
        ("node 1 of the job ended: rank 2 ended with exit code 1", EndReason.CANCELED),
    ],
)
def test_an_exit_record_of_an_earlier_version_gets_its_reason(
    sentence: str, reason: EndReason
) -> None:
    record = ExitRecord.from_json({**OLD, "reason": sentence})
    assert (record.end_reason, record.reason) == (reason, sentence)
    assert record.ranks[0].ended_at == 2.0 and record.tree == "cgroup2"


def test_old_record_without_a_cancel_gets_no_reason() -> None:
    assert ExitRecord.from_json({**OLD, "outcome": "failed"}).end_reason is None


def test_reason_code_counts_instead_of_its_text() -> None:
    values = {**through_json(RECORD), "reason": "its place was lost"}
    assert ExitRecord.from_json(values).end_reason is EndReason.PREEMPTED


def test_unknown_fields_are_dropped_and_missing_ones_get_defaults() -> None:
    values = {**through_json(RECORD), "colour": "red"}
    del values["usage"], values["leftovers"]
    assert ExitRecord.from_json(values) == replace(RECORD, usage=None, leftovers=Leftovers())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "an exit record is one JSON object, not []"),
        ({}, "an exit record has no entry 'job'"),
        ({**OLD, "version": 2}, "an exit record has version 2; this rayjobs reads version 1"),
        ({**OLD, "node": "0"}, "an exit record, entry 'node': '0' is not a whole number"),
        ({**OLD, "node": True}, "an exit record, entry 'node': True is not a whole number"),
        ({**OLD, "outcome": "odd"}, "an exit record has 'odd' as its 'outcome'"),
        ({**OLD, "ranks": [{}]}, "an exit record, entry 'ranks': a rank exit has no entry 'rank'"),
        ({**OLD, "ranks": 3}, "an exit record, entry 'ranks': 3 is not a list"),
        ({**OLD, "cold": 3}, "an exit record, entry 'cold': 3 is not a text"),
    ],
)
def test_invalid_message_is_refused_in_one_sentence(values: Any, message: str) -> None:
    with pytest.raises(MessageError) as refused:
        ExitRecord.from_json(values)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@dataclass(frozen=True)
class Tails(Message):
    tails: dict[int, bytes]


def test_bytes_and_numbers_as_names_survive() -> None:
    message = Tails({3: b"\xff\n"})
    assert Tails.from_json(through_json(message)) == message
    with pytest.raises(MessageError, match="base 64"):
        Tails.from_json({"tails": {"3": "?"}})


def test_every_outcome_and_every_reason_of_an_end_has_its_rule() -> None:
    assert set(RULES) == set(Outcome)
    assert set(ENDS) == set(EndReason)
    for outcome, rule in RULES.items():
        assert rule.final_state is None or final_state(outcome) in FINAL
    with pytest.raises(ValueError, match="queued again after the outcome put_back"):
        final_state(Outcome.PUT_BACK)


def test_an_outcome_is_its_text() -> None:
    assert f"{Outcome.NODE_LOST}" == str(Outcome.NODE_LOST) == "node_lost"
    assert Outcome("node_lost") is Outcome.NODE_LOST and {"node_lost": 1}[Outcome.NODE_LOST] == 1
    assert Found("gone") is Found.GONE


# -- what version 0.1.0 left behind ---------------------------------------------------------------

OLD_PLAN: dict[str, Any] = {
    "version": 1, "job": "j", "attempt": 1, "node": 0, "node_count": 1, "marker": "m",
    "root": "/r", "socket": "/s/h.sock", "kind": "script", "argv": ["train.py", "--lr", "0.1"],
    "command": None, "python": "/usr/bin/python3", "cold": None, "env": {"PATH": "/bin"},
    "ranks": [{"rank": 0, "local_rank": 0, "env": {"AZ_BATCHAI_TASK_INDEX": "0"}}],
    "grace_s": 10.0, "max_duration_s": None, "memory_bytes": None, "pids_max": 16384,
    "log_cap_bytes": None, "threads": 2, "injob_path": "/lib", "umask": 18, "address": "10.0.0.1",
    "master_port": 29511, "extras": {"kind": "head-start", "port": 29511, "most_s": 0.1},
    "lease_s": 90.0, "lease_since_s": 12.5, "stall_timeout_s": None,
    "raylet": {"pid": 7, "start_time": 9, "boot_id": "b"}, "watches_raylet": True,
    "soft_files": 1024, "hold": ["cgroup", "scan"], "views": None,
}  # fmt: skip
OLD_ORDER = {
    "workspace": "/w/.rayjobs", "target": "local", "node_id": "n", "address": "127.0.0.1",
    "boot_id": "b", "snapshot": "sha256:0", "environment": None, "inputs": {}, "outputs": {},
    "secrets": {}, "resume": {"run": None, "path": None}, "plan": OLD_PLAN,
}  # fmt: skip


def test_a_plan_of_an_earlier_version_is_read() -> None:
    plan = parse(OLD_PLAN)
    assert plan.raylet == Identity(7, 9, "b")
    assert (plan.lease_s, plan.lease_since_s, plan.containment) == (90.0, 12.5, ("cgroup", "scan"))
    assert parse(plan.to_json()) == plan
    assert parse({**OLD_PLAN, "hold": ["namespace"]}).containment == ("namespace",)


def test_a_host_of_an_earlier_version_reads_a_plan_of_today() -> None:
    """It reads entries by name, and ignores unknown ones."""
    written = parse(OLD_PLAN).to_json()
    assert {name for name in OLD_PLAN if name not in written} == {"watches_raylet"}
    assert {**OLD_PLAN, **written} == {**written, "watches_raylet": True}
    assert written["hold"] == written["containment"]


def test_launch_request_of_an_earlier_version_is_refused_in_one_sentence() -> None:
    with pytest.raises(MessageError) as refused:
        LaunchRequest.from_json(OLD_ORDER)
    assert str(refused.value) == "a launch request has no entry 'on'"


def test_node_with_an_agent_of_an_earlier_version_gets_a_new_one() -> None:
    from rayjobs.protocol.names import agent_name

    # In protocol 2, `start_daemon` was not one of `calls`.
    assert agent_name("local", "n") not in ("rayjobs-agent-local-n", "rayjobs-agent2-local-n")


@pytest.mark.parametrize(
    "message",
    [
        LaunchRequest(
            on=on_node(relay=Relay("/s/mpi", (Peer(1, "n1", "/s/1"),)), reads_secrets=True),
            plan=parse(OLD_PLAN),
            environment=PackagesRequest(pip=("torch",)),
            inputs={"x": InputRequest("photos/data")},
            outputs={"y": OutputRequest("photos/made", register_as=Registration("made"))},
            secrets={"K": SecretSource(env="RAYJOBS_SECRET_K")},
            resume=Resume(run="j"),
        ),
        Launched(Identity(1, 2, "b"), cold="asked for"),
        Hello("n", "10.0.0.1", "/r", {"PATH": "/bin"}, "/bin/python", "/lib", "0.1.0"),
        WarmRequest("fork", plan="/r/plan.json", secrets={"KEY": "s"}),
        WarmRequest("ping", is_user=True),
        HostRecord(1, "n1", "/r", "/s", "m", "10.0.0.1", 90.0, HostFacts(python="3.11.7")),
        HostRecord(0, "n0", pid=1, start_time=2, boot_id="b", cold="why", watches_raylet=True),
        Prepared("/r", {"x": "/in"}, facts=HostFacts(python="3.11.7", gpus=(Gpu(0, name="H200"),))),
        Collected(
            tails={0: b"\xff"},
            problems=("p.",),
            data=DataFacts(read_only={"x": ("/in",)}, troubles=(Trouble("x", "gone"),)),
            models=(RequestedModel("m", "m.pt", rank=1, tags={"a": "b"}),),
        ),
        calls.Stop(on_node(), EndCause(EndReason.PREEMPTED, "job b"), 2.0),
        calls.Stacks((RankStack(0, "S", "proc", "a.py:1", waits=False, text="dump"),)),
        calls.Stacks(None),
        calls.UncleanedFolders((calls.Uncleaned("j", 1, "/r"),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_of_the_agents_come_back_as_they_were(message: Message) -> None:
    assert type(message).from_json(through_json(message)) == message


def test_the_file_of_a_host_of_an_earlier_version_names_its_process(tmp_path: Path) -> None:
    earlier = {"version": 1, **own_identity().to_json(), "socket": "/s", "tree_refused": ["no"]}
    (tmp_path / "host.json").write_text(json.dumps(earlier))
    host = HostFile.read(str(tmp_path))
    assert host is not None
    assert (host.identity, host.socket) == (own_identity(), "/s")


def test_a_request_of_an_earlier_version_is_read() -> None:
    assert HostRequest.from_json({"op": "cancel", "reason": "stop"}).grace_s is None
    with pytest.raises(MessageError, match="'grace_s'"):
        HostRequest.from_json({"op": "cancel", "grace_s": "soon"})
    with pytest.raises(MessageError, match="'grace_s': int too large"):
        HostRequest.from_json({"op": "cancel", "grace_s": 10**400})


def test_ping_of_an_earlier_agent_counts_as_a_user_by_its_raylet() -> None:
    assert not WarmRequest.from_json({"op": "ping"}).is_user
    assert WarmRequest.from_json({"op": "ping", "raylet": None}).is_user
    assert "raylet" not in WarmRequest("ping").to_json()
    assert WarmRequest("ping", is_user=True).to_json()["raylet"] is None


def test_the_first_messages_of_a_class_are_like_those_after_them() -> None:
    """Those are made without `__init__`, with defaults of their own."""
    values = {"pid": 7, "start_time": 8, "boot_id": "b"}
    read = [WarmStatus.from_json(values) for _ in range(MADE_WITHOUT_INIT + 2)]
    assert set(map(repr, read)) == {repr(WarmStatus(pid=7, start_time=8, boot_id="b"))}
    assert read[0] == read[-1]
    assert read[0].not_preloaded is not read[1].not_preloaded
