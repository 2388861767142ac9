"""`rayjobs top`: show current usage and waiting jobs."""

from __future__ import annotations

import math
import statistics
import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from rayjobs.cli.jobviews import ran_s, short_id, waited_s
from rayjobs.cli.outlook import ANSWER_S, key_of
from rayjobs.cli.output import cut, cut_inside, print_json, table, width
from rayjobs.cli.settings import Settings, common_options, json_option
from rayjobs.core.errors import NotFoundError
from rayjobs.core.paths import home
from rayjobs.core.text import counted, duration_text, size_text
from rayjobs.jobs.records import Attempt, Job, JobLine, name_of
from rayjobs.jobs.states import JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target.answers import AllocationStatus, NodeStatus, StatusAnswer, WaitingJob
from rayjobs.target.requests import TargetRequest
from rayjobs.target.targets import require
from rayjobs.target.unfinished import why_unreached
from rayjobs.target.wake_client import ask_target
from rayjobs.workspace.folder import OpenWorkspace

AGAIN_S = 1.0
WAITING_SHOWN = 10

EPILOG = """\b
Examples:
  rayjobs top                  live, until Ctrl-C
  rayjobs top | cat            once
  rayjobs top --json | jq '.nodes[].gpus_used'
"""

NOT_RUNNING = "not running"  # the state of a target that can be started


@click.command(epilog=EPILOG)
@click.option("--target", metavar="NAME", help="Which target (default: see `rayjobs target use`).")
@click.option("--once", is_flag=True, help="Print it once, even on a terminal.")
@json_option
@common_options
@click.pass_obj
def top(settings: Settings, target: str | None, once: bool) -> int:
    """Show a target's nodes, the job that uses each GPU, and running and waiting jobs.

    On a terminal it is refreshed every second until Ctrl-C. Jobs of other workspaces are included
    where they use a node, under their workspace.
    """
    from rayjobs.submit.project import default_target

    target = target or default_target().name
    require(target)  # its error lists the existing targets
    with settings.open() as workspace:
        if settings.as_json:
            print_json(look(workspace, target))
            return 0
        if once or not sys.stdout.isatty():
            click.echo("\n".join(_lines(look(workspace, target))))
            return 0
        while True:
            lines = _lines(look(workspace, target))
            # Overwrite the old lines: clearing them first would flicker.
            text = "".join(f"{cut(line, width())}\x1b[K\n" for line in lines)
            click.echo(f"\x1b[H{text}\x1b[J", nl=False)
            time.sleep(AGAIN_S)


def look(workspace: OpenWorkspace, target: str) -> dict[str, Any]:
    """Return what a target is doing, as plain data; its keys are part of the contract."""
    now = datetime.now(UTC)
    store = workspace.store
    live = store.live(target)
    queued = store.job_lines(JobFilter(states=[JobState.QUEUED], target=target, newest_first=False))
    waiting = [job for job in queued if job.kind == "job"]
    status, state = _status(target)
    held = {one.job: one for one in status.allocations if one.job is not None}
    rows = [
        _waiting(job, status.waiting.get(key_of(workspace.path, job), WaitingJob()), now)
        for job in waiting
    ]
    # Jobs without a known position are sorted like the queue: by priority, then by age.
    rows.sort(key=lambda row: (row["position"] or math.inf, -row["priority"]))
    waits = [waited_s(job, now=now) for job in waiting]
    ours = {key_of(workspace.path, job): (job, attempt) for job, attempt in live}
    return {
        "target": target,
        "state": state,
        "at": now,
        "nodes": [_node(node, held, ours) for node in status.nodes],
        "running": [
            _running(job, attempt, held.get(key_of(workspace.path, job)), now)
            for job, attempt in live
        ],
        "waiting": rows,
        "queue_length": max(len(rows), len(status.waiting)),
        "longest_wait_s": max(waits, default=None),
        "median_wait_s": statistics.median(waits) if waits else None,
    }


def _status(target: str) -> tuple[StatusAnswer, str]:
    """Return a target's answer, without entries if there is none, and its state in words."""
    request = TargetRequest("status")
    try:
        status = ask_target(target, home(), request, StatusAnswer, timeout_s=ANSWER_S)
    except TimeoutError:
        return StatusAnswer(), "busy"
    if status is None or not status.ok:
        try:
            address, unreached = why_unreached(target, home=home())
        except NotFoundError:
            address, unreached = "", ""
        return StatusAnswer(), f"cluster unreachable at {address}" if unreached else NOT_RUNNING
    return status, "running"


def _node(
    node: NodeStatus,
    held: dict[str, AllocationStatus],
    ours: dict[str, tuple[Job, Attempt]],
) -> dict[str, Any]:
    """Return one node: its totals, what is in use, and the job that uses each GPU."""
    jobs = []
    for key, one in held.items():
        indexes = [index for index, at in enumerate(one.nodes) if at == node.node_id]
        if not indexes:
            continue
        gpus = [gpu for index in indexes if index < len(one.gpus) for gpu in one.gpus[index]]
        path, _, job_id = key.rpartition("::")
        known = ours.get(key)
        jobs.append(
            {
                "id": job_id,
                "short_id": short_id(known[0]) if known else None,
                "name": name_of(known[0]) if known else None,
                "workspace": path,
                "cpus": one.shape.cpus * len(indexes),
                "gpus": one.shape.gpus * len(indexes),
                "gpu_ids": gpus,
            }
        )
    return {
        "node_id": node.node_id,
        "cpus": node.cpus,
        "cpus_used": node.cpus - node.free_cpus,
        "gpus": node.gpus,
        "gpus_used": node.gpus - node.free_gpus,
        "memory_bytes": node.memory,
        "memory_used_bytes": node.memory - node.free_memory,
        "jobs": jobs,
    }


def _waiting(job: JobLine, why: WaitingJob, now: datetime) -> dict[str, Any]:
    return {
        "id": job.id,
        "short_id": short_id(job),
        "name": name_of(job),
        "user": job.user,
        "priority": job.priority,
        "position": why.position or None,
        "reason": why.reason or job.reason,
        "waited_s": waited_s(job, now=now),
    }


def _running(
    job: Job, attempt: Attempt, held: AllocationStatus | None, now: datetime
) -> dict[str, Any]:
    held = held or AllocationStatus()
    nodes = held.nodes or [host.node_id for host in attempt.hosts]
    return {
        "id": job.id,
        "short_id": short_id(job),
        "name": name_of(job),
        "user": job.user,
        "state": str(job.state),
        "attempt": job.attempt,
        "nodes": nodes,
        "gpu_ids": held.gpus,
        "cpus": held.shape.cpus * held.shape.nodes,
        "gpus": held.shape.gpus * held.shape.nodes,
        "elapsed_s": ran_s(job, now=now),
        "limit_s": job.spec.max_duration_s,
    }


def _lines(seen: dict[str, Any]) -> list[str]:
    waits = ""
    if seen["median_wait_s"] is not None:
        waits = (
            f" (median wait {duration_text(seen['median_wait_s'])}, "
            f"longest {duration_text(seen['longest_wait_s'])})"
        )
    lines = [
        f"target {seen['target']} ({seen['state']}): {len(seen['running'])} running, "
        f"{seen['queue_length']} waiting{waits}",
    ]
    if seen["state"] == NOT_RUNNING:
        lines.append(f"  `rayjobs target start {seen['target']}` starts it")
    for node in seen["nodes"]:
        use = f"{node['cpus_used']:g}/{counted(node['cpus'], 'CPU')}"
        if node["gpus"]:
            use += f", {node['gpus_used']:g}/{counted(node['gpus'], 'GPU')}"
        use += f", {size_text(node['memory_used_bytes'])}/{size_text(node['memory_bytes'])}"
        lines.append(f"  {str(node['node_id'])[:12]}  {use} held")
        lines += [f"    {_use(job)}" for job in node["jobs"]]
    if seen["running"]:
        rows = [
            (
                one["short_id"],
                cut_inside(one["name"], 24),
                one["user"][:12],
                one["state"],
                f"{one['gpus']:g}",
                duration_text(one["elapsed_s"]),
                duration_text(one["limit_s"], exact=True) if one["limit_s"] else "none",
            )
            for one in seen["running"]
        ]
        header = ("RUNNING", "NAME", "USER", "STATE", "GPUS", "ELAPSED", "LIMIT")
        lines += ["", *table(rows, header, right=(4, 5, 6)).splitlines()]
    if seen["waiting"]:
        rows = [
            (
                one["short_id"],
                cut_inside(one["name"], 24),
                one["user"][:12],
                f"#{one['position']}" if one["position"] else "-",
                str(one["priority"]),
                duration_text(one["waited_s"]),
                " ".join(str(one["reason"]).split()),
            )
            for one in seen["waiting"][:WAITING_SHOWN]
        ]
        header = ("WAITING", "NAME", "USER", "PLACE", "PRIORITY", "WAITED", "")
        lines += ["", *table(rows, header, right=(3, 4, 5)).splitlines()]
        more = len(seen["waiting"]) - WAITING_SHOWN
        if more > 0:
            lines.append(f"and {more} more: `rayjobs ls -s queued`")
    return lines


def _use(job: dict[str, Any]) -> str:
    who = f"{job['short_id']} {job['name']}" if job["short_id"] else f"a job of {job['workspace']}"
    what = counted(job["cpus"], "CPU")
    if job["gpus"]:
        ids = f" ({', '.join(job['gpu_ids'])})" if job["gpu_ids"] else ""
        what += f", {counted(job['gpus'], 'GPU')}{ids}"
    return f"{who}: {what}"
