"""Messages about attempts, for tests that do not need a particular job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayjobs.injob.plan import LaunchPlan, RankPlan
from rayjobs.protocol.attempts import AttemptOnNode, InputRequest, LaunchRequest, OutputRequest


def on_node(root: Path | str = "/nowhere", **facts: Any) -> AttemptOnNode:
    """Return the first attempt of the job j, alone on its node."""
    known: dict[str, Any] = {
        "workspace": "/nowhere/ws",
        "target": "local",
        "job": "j",
        "attempt": 1,
        "node": 0,
        "marker": "m",
        "root": str(root),
        "socket": f"{root}/h.sock",
        "ranks": (0,),
        **facts,
    }
    return AttemptOnNode(**known)


def on_node_of(plan: Mapping[str, Any], workspace: Path | str = "/nowhere/ws") -> AttemptOnNode:
    """Return the attempt whose host runs a plan, given as JSON."""
    return of_plan(LaunchPlan.from_json(plan), workspace)


def of_plan(plan: LaunchPlan, workspace: Path | str = "/nowhere/ws") -> AttemptOnNode:
    """Return the attempt whose host runs a plan."""
    return AttemptOnNode(
        workspace=str(workspace),
        target="local",
        job=plan.job,
        attempt=plan.attempt,
        node=plan.node,
        marker=plan.marker,
        root=plan.root,
        socket=plan.socket,
        node_count=plan.node_count,
        ranks=tuple(one.rank for one in plan.ranks),
        address=plan.address,
        grace_s=plan.grace_s,
        max_duration_s=plan.max_duration_s,
        stall_timeout_s=plan.stall_timeout_s,
        lease_s=plan.lease_s,
        relay=plan.relay,
    )


def plan_on(on: AttemptOnNode, env: Mapping[str, str] = MappingProxyType({})) -> LaunchPlan:
    """Return the plan of an attempt with one rank, which is never started."""
    return LaunchPlan(
        job=on.job,
        attempt=on.attempt,
        node=on.node,
        node_count=on.node_count,
        marker=on.marker,
        root=on.root,
        socket=on.socket,
        kind="script",
        argv=("train.py",),
        python="/bin/python",
        env=env,
        ranks=(RankPlan(0, 0),),
        injob_path="/nowhere",
    )


def write_plan(root: Path, env: Mapping[str, str] = MappingProxyType({}), **facts: Any) -> None:
    """Write the plan of the attempt in `root`; for `facts` see `on_node`."""
    plan = plan_on(on_node(root, **facts), env)
    (root / "plan.json").write_text(json.dumps(plan.to_json()))


def request_of(plan: LaunchPlan, workspace: Path | str, **facts: Any) -> LaunchRequest:
    """Return the request to launch a plan."""
    return LaunchRequest(on=of_plan(plan, workspace), plan=plan, **facts)


def data_request(
    root: Path | str,
    *,
    inputs: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    outputs: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **facts: Any,
) -> LaunchRequest:
    """Return a request of which only the data matters; for `facts` see `on_node`."""
    on = on_node(root, **facts)
    return LaunchRequest(
        on=on,
        plan=plan_on(on),
        inputs={name: InputRequest.from_json(one) for name, one in inputs.items()},
        outputs={name: OutputRequest.from_json(one) for name, one in outputs.items()},
    )
