"""Compute targets as users handle them: create, list, show, start, stop. No import of ray."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR1
from typing import ClassVar

from rayjobs.core import ids
from rayjobs.core.errors import TargetError, UsageError
from rayjobs.core.paths import home as default_home
from rayjobs.core.text import duration_text
from rayjobs.injob.identity import Identity, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.policy.capacity import Capacity, NodeShape
from rayjobs.policy.node_types import NodeTypes, read_cluster_file
from rayjobs.target import (
    keeper_state,
    local_head,
    reach,
    start_processes,
    starting,
    stop_record,
    stopping,
    unfinished,
    wake_client,
)
from rayjobs.target.answers import NodeStatus, StatusAnswer, TargetAnswer
from rayjobs.target.local_head import LOCAL
from rayjobs.target.machine import LocalSettings
from rayjobs.target.record import (
    LEASE_S,
    TargetRecord,
    all_targets,
    check_name,
    load_target,
    save_target,
)
from rayjobs.target.reports import Activity, CapacityReport
from rayjobs.target.requests import TargetRequest
from rayjobs.target.revival_record import Revival
from rayjobs.target.stop_request import StopAnswer, StopRequest
from rayjobs.target.stopping import TargetLocation
from rayjobs.target.token_check import WITHOUT_TOKEN, check_token, check_without_token, read_token
from rayjobs.workspace import server_choice

LOOK_S = 2.0  # for a list of targets, per cluster that does not answer
REMOVE_S = 60.0
STOP_TIMEOUT_S = 420.0  # includes the wait for a start in progress
POLL_S = 0.05
Stages = Callable[[str], None]


@dataclass(frozen=True)
class TargetView(Message):
    """A target as `rayjobs target show` prints it.

    Attributes:
        kind: "local" or "attached".
        state: "running", "starting", "stopped", "lost" (its Ray runs, nothing answers), "failing"
            (it does not start, and will be tried again later), "unreachable" (its cluster), or
            "ready" (its cluster answers, and the first job starts the target's own actor).
        problem: Why it does not run, in one sentence with a remedy; empty if that is intended.
        version: The actor's version of rayjobs; empty: it does not answer.
        busy: Whether jobs are queued or running; None if unknown.
        nodes: Its nodes when its actor last reported them.
        keeper_pid: Pid of the process that keeps a local target running; None: there is none.
        detail: The actor's own answer (`status`), if requested.
        without_token: Anyone who reaches its cluster can run code on it.
    """

    READS_VERSION: ClassVar[int | None] = None

    name: str
    kind: str
    state: str
    address: str = ""
    dashboard_url: str = ""
    version: str = ""
    busy: bool | None = None
    nodes: tuple[NodeStatus, ...] = ()
    keeper_pid: int | None = None
    detail: StatusAnswer | None = None
    problem: str = ""
    without_token: bool = False


def create_target(
    name: str,
    *,
    address: str | None = None,
    token_file: Path | str | None = None,
    lease_s: float | None = None,
    cluster: Path | str | None = None,
    start_timeout_s: float | None = None,
    without_token: bool = False,
    home: Path | None = None,
) -> TargetRecord:
    """Attach a running Ray cluster as a target, or change the settings of an attached one.

    The address and the token file of a target that exists cannot be changed; it keeps each setting
    that is not given.

    Args:
        address: `host:port` of the cluster's GCS. None or "local" is the local head, which
            exists without being created.
        token_file: The cluster's token, in a file that only its owner can read.
        lease_s: Seconds after which a job on an unreachable node is tried elsewhere; 90 for a new
            target.
        cluster: The configuration file of `ray up`: the target may start its node types.
        start_timeout_s: How many seconds a job waits for nodes to start before it tries again;
            1200 for a new target.
        without_token: Accept a cluster that requires no token: anyone who reaches it can run code
            on it, as the user who started it, and read what its jobs read.

    Raises:
        UsageError: the cluster's file, the name, lease, address or token file is invalid, or the
            name is in use.
        NotFoundError: there is no such token file.
        TargetError: the cluster needs no token, and `without_token` is off.
        UnreachableError: no cluster answers there (mostly an `UnreachedError`).
    """
    server_choice.refuse("`rayjobs target create`")
    check_name(name)
    at = home or default_home()
    if name == LOCAL or address in (None, LOCAL):
        if name == LOCAL and address in (None, LOCAL):
            return TargetRecord(LOCAL)
        raise UsageError(
            f"target {name!r} with address {address!r}: the local target is called `local` and "
            f"exists already; for a cluster, give another name and --address HOST:PORT."
        )
    assert address is not None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not a cluster's address; give HOST:PORT.")
    if without_token and token_file is not None:
        raise UsageError(f"give a token file or {WITHOUT_TOKEN}, not both.")
    if token_file is None and not without_token:
        raise UsageError(
            f"target {name!r} needs a token file: a Ray cluster that requires no token is "
            f"refused, since anyone who can reach it can run code on it; {WITHOUT_TOKEN} "
            f"accepts that."
        )
    path = None if token_file is None else Path(token_file).expanduser().absolute()
    record = TargetRecord(
        name,
        address=address,
        token_file=None if path is None else str(path),
        without_token=without_token,
        lease_s=LEASE_S,
    )
    known = {found.name: found for found in all_targets(home=at)}.get(name, record)
    if (known.address, known.token_file) != (record.address, record.token_file):
        raise UsageError(f"target {name!r} exists with address {known.address}; remove it first.")
    changed = _with_settings(known, lease_s, cluster, start_timeout_s)
    token = None if path is None else read_token(path)
    reach.check_reachable(name, address)  # gRPC would wait three times as long
    if without_token:
        check_without_token(address)
    else:
        check_token(address, token)
    save_target(changed, home=at)
    return changed


def _with_settings(
    record: TargetRecord,
    lease_s: float | None,
    cluster: Path | str | None,
    start_timeout_s: float | None,
) -> TargetRecord:
    """Return a target with the given settings, which are checked; None leaves one unchanged."""
    if lease_s is not None:
        if not LEASE_S <= lease_s < float("inf"):
            raise UsageError(
                f"a lease of {duration_text(lease_s)} is too short: a target actor that is "
                "restarted, or a slow network, would end healthy jobs. Give "
                f"{duration_text(LEASE_S)} or more."
            )
        record = replace(record, lease_s=lease_s)
    if start_timeout_s is not None:
        if not 0 < start_timeout_s < float("inf"):
            raise UsageError(
                f"nodes cannot start within {duration_text(start_timeout_s)}; give more than 0."
            )
        record = replace(record, start_timeout_s=start_timeout_s)
    if cluster is not None:
        types = read_cluster_file(Path(cluster).expanduser())
        record = replace(record, node_types=types)
    return record


def remove_target(
    name: str,
    *,
    force: bool = False,
    home: Path | None = None,
    on_stage: Stages = lambda _text: None,
) -> str:
    """Remove an attached target and end its actor if possible; leave the cluster alone.

    Args:
        force: Even with unfinished jobs; they stay in their stores.

    Returns:
        Why its actor could not be ended; empty if it was.

    Raises:
        UsageError: it is the local one, which cannot be removed.
        TargetError: it has jobs that are not finished, and `force` is off.
    """
    server_choice.refuse("`rayjobs target rm`")
    at = home or default_home()
    record, location = load_target(name, home=at), TargetLocation(name, at)
    if record.address is None:
        raise UsageError("the local target cannot be removed; stop it: `rayjobs target stop`.")
    with starting.start_lock(location.paths):
        if not force:
            why = reach.why_unreachable(record.address)
            where = f"{record.address}: {why}" if why else ""
            unfinished.check_none(
                name, unfinished.of_target(name, home=at), command="rm", unreached=where
            )
        reason = reach.why_unreachable(record.address)
        if not reason:
            try:
                _end_actor(location, force, on_stage, timeout_s=REMOVE_S)
            except TargetError as error:
                reason = error.message
        stopping.remove_files(location)
        shutil.rmtree(location.paths.root, ignore_errors=True)
    return reason


def list_targets(*, home: Path | None = None) -> list[TargetView]:
    """Return every target with its state."""
    if (server := server_choice.active()) is not None:
        return server.ask("GET", "/v1/targets", list[TargetView])
    at = home or default_home()
    return [target_status(record.name, home=at) for record in all_targets(home=at)]


def known_names(*, home: Path | None = None) -> list[str]:
    """Return the names of all targets: of this machine, or of the server that is used."""
    if (server := server_choice.active()) is not None:
        return [one.name for one in server.ask("GET", "/v1/targets", list[TargetView])]
    return [record.name for record in all_targets(home=home or default_home())]


def require(name: str, *, home: Path | None = None) -> None:
    """Check that there is a target with this name, here or at the server that is used.

    Raises:
        NotFoundError: there is none; the message names those that exist.
    """
    if (server := server_choice.active()) is not None:
        server.ask("GET", f"/v1/targets/{name}", TargetView)
    else:
        load_target(name, home=home or default_home())


def target_status(name: str, *, home: Path | None = None, ask: bool = False) -> TargetView:
    """Return a target's state; starts nothing.

    Args:
        ask: Also fetch the actor's report on its queue and allocations (`detail`).

    Raises:
        NotFoundError: no such target.
    """
    if (server := server_choice.active()) is not None:
        query = {"ask": "1"} if ask else {}
        return server.ask("GET", f"/v1/targets/{name}", TargetView, query=query)
    at = home or default_home()
    record, location = load_target(name, home=at), TargetLocation(name, at)
    head = local_head.load_record(location.paths) if record.is_local else None
    answer: TargetAnswer | None
    detail: StatusAnswer | None = None
    if ask:
        detail, is_there = _ask(location, "status", StatusAnswer)
        answer = detail
    else:
        answer, is_there = _ask(location, "ping", TargetAnswer)
    activity = Activity.read(location.paths)
    kept = keeper_state.is_kept(location.paths) if record.is_local else False
    if is_there:
        state = "running"
    elif head is not None and head.is_running:
        state = "starting" if kept else "lost"
    else:
        state = "starting" if kept else "stopped"
    problem = ""
    if kept and not is_there and (pause := keeper_state.pause_of(location.paths)) is not None:
        state, problem = "failing", pause.sentence(name)
    elif not is_there:
        state, problem = _why_not(record, location, state)
    running = state in ("running", "lost")
    owner = keeper_state.keeper_of(location.paths)
    return TargetView(
        name=name,
        without_token=record.without_token,
        kind="local" if record.is_local else "attached",
        state=state,
        address=record.address or (head.gcs_address if head and running else ""),
        dashboard_url=dashboard_url(name, home=at) if running else "",
        version="" if answer is None else answer.version,
        busy=activity.busy if activity is not None and is_there else None,
        nodes=CapacityReport.read(location.paths).nodes,
        keeper_pid=owner.pid if owner else None,
        detail=detail,
        problem=problem,
    )


def _why_not(record: TargetRecord, location: TargetLocation, state: str) -> tuple[str, str]:
    """Return the state of a target that does not answer, and the known reason."""
    if record.address is not None:
        reason = reach.why_unreachable(record.address, timeout_s=LOOK_S)
        if reason:
            return "unreachable", reach.unreachable_text(location.name, record.address, reason)
    stop = stop_record.last(location.paths)
    error = Revival.read(location.paths).error
    if state == "stopped" and error and not stop.is_in_force:
        return "failing", error
    if record.address is not None and state == "stopped" and not stop.is_in_force:
        return "ready", ""  # its cluster answers; the first job starts the rest
    return state, ""


def start_target(
    name: str = LOCAL, *, home: Path | None = None, on_stage: Stages = lambda _text: None
) -> starting.TargetStatus:
    """Start a target unless it runs.

    Raises:
        TargetError: it could not be started.
    """
    return starting.ensure_target(name, home=home or default_home(), on_stage=on_stage)


def stop_target(
    name: str = LOCAL,
    *,
    force: bool = False,
    home: Path | None = None,
    on_stage: Stages = lambda _text: None,
) -> bool:
    """Stop a target: its actor, and for `local` Ray and everything around it.

    Args:
        force: Even with jobs queued or running: running attempts are ended.

    Returns:
        False if no part of it ran.

    Raises:
        StopRefusedError: jobs are not finished and `force` is off.
        TargetError: something did not end, or the cluster cannot be reached (`UnreachedError`).
            Even then, nothing revives the target automatically.
    """
    server_choice.refuse("`rayjobs target stop`")
    at = home or default_home()
    record, location = load_target(name, home=at), TargetLocation(name, at)
    with starting.start_lock(location.paths), stop_record.noted(location.paths):
        if record.address is not None:
            return _stop_attached(location, record.address, force, on_stage)
        while True:
            with keeper_state.keeper_lock(location.paths) as no_keeper:
                if no_keeper:
                    return _stop_here(location, force, on_stage)
            if _stop_by_keeper(location, force, on_stage):
                return True


def was_stopped(name: str, *, home: Path | None = None) -> bool:
    """Whether a user has already stopped a target and no part of it runs."""
    location = TargetLocation(name, home or default_home())
    is_there = wake_client.is_listening(location.socket) or keeper_state.is_kept(location.paths)
    return stop_record.last(location.paths).is_in_force and not is_there


def _stop_here(location: TargetLocation, force: bool, on_stage: Stages) -> bool:
    """Stop a head whose keeper was killed; the caller holds the keeper's lock."""
    folder = local_head.ray_folder(location.home)
    ran = location.paths.head.exists() or any(True for _ in local_head.processes_of(folder))
    if ran:
        with stopping.retired(location, force=force):
            stopping.stop_head(location, say=on_stage)
    else:
        stopping.remove_files(location)
    return ran


def _stop_by_keeper(location: TargetLocation, force: bool, on_stage: Stages) -> bool:
    """Ask the keeper; False if it ended without an answer (it was killed)."""
    request = StopRequest(ids.token(4), force)
    location.paths.stop_answer.unlink(missing_ok=True)
    request.write(location.paths)
    on_stage(f"stopping target {location.name}")
    deadline = time.monotonic() + STOP_TIMEOUT_S
    signaled: Identity | None = None
    while time.monotonic() < deadline:
        owner = keeper_state.keeper_of(location.paths)
        if owner is not None and owner != signaled:
            if signaled is not None:  # that one died while it handled the request
                request.write(location.paths)
            send_signal(owner, SIGUSR1)  # it would check within a second anyway
            signaled = owner
        answer = StopAnswer.read(location.paths)
        if answer is not None and answer.id == request.id:
            if answer.error:
                location.paths.stop_answer.unlink(missing_ok=True)
                kind = stopping.StopRefusedError if answer.is_refused else TargetError
                raise kind(answer.error)
            if not keeper_state.is_kept(location.paths):
                location.paths.stop_answer.unlink(missing_ok=True)
                return True
        elif not keeper_state.is_kept(location.paths):
            location.paths.stop_request.unlink(missing_ok=True)
            return False
        time.sleep(POLL_S)
    location.paths.stop_request.unlink(missing_ok=True)
    raise TargetError(
        f"the keeper of target {location.name!r} did not stop it within "
        f"{duration_text(STOP_TIMEOUT_S)}. "
        f"See {location.paths.log / 'keeper.log'}."
    )


def _stop_attached(location: TargetLocation, address: str, force: bool, on_stage: Stages) -> bool:
    on_stage(f"connecting to Ray at {address}")
    if reason := reach.why_unreachable(address):
        raise reach.UnreachedError(
            f"{reach.unreachable_text(location.name, address, reason)}. The stop is recorded: no "
            f"command restarts the target automatically when the cluster is back. If its actor "
            f"still runs there, run `rayjobs target stop {location.name}` again when the cluster "
            f"answers",
            address=address,
        )
    _end_actor(location, force, on_stage, timeout_s=STOP_TIMEOUT_S)
    stopping.remove_files(location)
    return True


def _end_actor(
    location: TargetLocation, force: bool, on_stage: Stages, *, timeout_s: float
) -> None:
    with stopping.retired(location, force=force):
        stopping.put_back(location, on_stage)
        on_stage(f"ending the actor of target {location.name}")
        start_processes.run_starter(location, "end", on_stage=on_stage, timeout_s=timeout_s)


def dashboard_url(name: str = LOCAL, *, home: Path | None = None) -> str:
    """Return the address of a target's Ray dashboard; empty if unknown."""
    at = home or default_home()
    record, location = load_target(name, home=at), TargetLocation(name, at)
    if record.is_local:
        head = local_head.load_record(location.paths)
        return head.dashboard_url if head is not None and head.is_running else ""
    try:
        return (location.paths.root / "dashboard").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def capacity_of(name: str = LOCAL, *, home: Path | None = None) -> Capacity:
    """Return a target's maximum capacity, to refuse jobs that can never fit; starts nothing.

    For a running target this is its own record (`capacity.json`, `head.json`); for a local target
    that is restarting, what it was started with; for a stopped one, this machine's resources. Nodes
    that a cluster may start count as if they ran. An attached cluster that was never seen, and
    whose node types are unknown, is unbounded.
    """
    if (server := server_choice.active()) is not None:
        return server.ask("GET", f"/v1/targets/{name}/capacity", Capacity)
    at = home or default_home()
    record, location = load_target(name, home=at), TargetLocation(name, at)
    shapes: list[NodeShape] = []
    head = local_head.load_record(location.paths) if record.is_local else None
    if record.is_local and (head is None or not head.is_running):
        # While it restarts, the settings of its own start apply, not those of this shell.
        settings = LocalSettings.read(local_head.with_settings(location.paths, os.environ))
        shapes = [NodeShape(float(settings.cpus), float(settings.gpus), settings.memory_bytes)]
    elif head is not None:
        shapes = [NodeShape(head.cpus, head.gpus, head.memory_bytes)]
    else:
        shapes = [
            NodeShape(node.cpus, node.gpus, int(node.memory), node_type=node.node_type)
            for node in CapacityReport.read(location.paths).nodes
        ]
    if record.node_types is not None:
        return _with_types(shapes, record.node_types)
    return Capacity(nodes=tuple(shapes), max_nodes=len(shapes), shares_machine=record.is_local)


def _with_types(seen: list[NodeShape], types: NodeTypes) -> Capacity:
    """Return the possible nodes: all that may start, and running ones without a node type."""
    # The head runs no jobs, hence its capacity does not count.
    running = [node for node in seen if node.cpus + node.gpus > 0]
    others = [node for node in running if types.named(node.node_type) is None]
    may_start = [
        NodeShape(one.cpus, one.gpus, one.memory_bytes, one.max_nodes, one.name)
        for one in types.types
    ]
    return Capacity(
        nodes=(*may_start, *others),
        max_nodes=types.max_nodes + len(others),
        types=types,
        running=tuple(running),
    )


def _ask(
    location: TargetLocation, operation: str, kind: type[wake_client.Kind]
) -> tuple[wake_client.Kind | None, bool]:
    try:
        answer = wake_client.ask(location.socket, TargetRequest(operation), kind)
    except TimeoutError:
        return None, True  # it listens, but is slow
    return answer, answer is not None
