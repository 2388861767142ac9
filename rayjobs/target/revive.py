"""Revives a target that has unfinished jobs and was not stopped on purpose. No Ray.

Commands that deal with unfinished jobs call `look_after`. If the target has died, that starts a
separate process which restarts the target, and does not wait for it. If that fails, the next
command that calls `look_after` tries again, after a pause that grows from 10 s to 10 min.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from rayjobs.core.errors import NotFoundError
from rayjobs.injob.identity import is_alive, own_identity
from rayjobs.jobs.serving import Serving
from rayjobs.target import (
    elsewhere,
    keeper_state,
    local_head,
    reach,
    starting,
    stop_record,
    wake_client,
)
from rayjobs.target.condition import Condition, Standing, looked_after_by
from rayjobs.target.record import TargetRecord, load_target
from rayjobs.target.revival_record import Revival
from rayjobs.target.stopping import TargetLocation
from rayjobs.workspace import server_choice

QUICK_LOOK_S = 0.3  # a command that reads the store must not wait for a cluster
SPAWNED_WITHIN_S = 5.0  # by then, a spawned process has written its own record
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0


def look_after(
    name: str, *, home: Path, workspace: Path | str, answers: bool | None = None
) -> Condition:
    """Return the condition of a target with unfinished jobs; begin to revive it if it died.

    Never waits for the target or for its cluster.

    Args:
        workspace: Where the unfinished jobs are.
        answers: Whether it has just answered, if known.
    """
    if (server := server_choice.active()) is not None:
        return looked_after_by(server, name)
    location = TargetLocation(name, home)
    serving = elsewhere.find_quietly(workspace, name, home=home)
    if serving is not None:
        return of_elsewhere(serving)
    try:
        record = load_target(name, home=home)
    except NotFoundError as missing:
        return Condition(Standing.UNKNOWN, missing.message)
    if answers is None:
        answers = wake_client.is_listening(location.socket)
    # This call also registers a moved workspace at its new path.
    is_registered = starting.is_registered(location.paths, workspace)
    if answers:
        if record.is_local and starting.lost_its_keeper(location):
            return Condition(Standing.RUNNING, has_begun=_begin(location, workspace))
        return Condition(Standing.RUNNING)
    stop = stop_record.last(location.paths)
    if stop.is_in_force:
        return Condition(
            Standing.STOPPED,
            f"target {name!r} was stopped ({_clock(stop.at)}); start it with "
            f"`rayjobs target start {name}`",
            may_run_on=stop.is_unreached,
        )
    starts = Condition(Standing.STARTING, f"target {name!r} is being started")
    if record.is_local and keeper_state.is_kept(location.paths):
        pause = keeper_state.pause_of(location.paths)
        return starts if pause is None else Condition(Standing.FAILING, pause.sentence(name))
    if not is_registered:  # no job here has ever requested its start
        return Condition(
            Standing.ABSENT,
            f"target {name!r} does not run; start it by `rayjobs target start {name}`",
        )
    return _revived(location, workspace, record, starts)


def _revived(
    location: TargetLocation, workspace: Path | str, record: TargetRecord, starts: Condition
) -> Condition:
    """Begin to revive a target that died, unless that is in progress or a pause has not ended."""
    known = Revival.read(location.paths)
    failures, left_s = known.failures, _pause_left_s(known)
    error = starts.reason if known.error is None else known.error
    fails = Condition(Standing.FAILING, error)
    if _is_at_work(known):  # no report yet on a new try after failures
        return fails if failures else starts
    if not failures and record.address is not None:
        found = reach.look(record.address, timeout_s=QUICK_LOOK_S)
        if found.problem and not found.is_late:
            error = reach.unreachable_text(location.name, record.address, found.problem)
            failed(location, error, before=0)
            return Condition(Standing.FAILING, error)
    elif failures and left_s > 0:
        return fails
    begun = _begin(location, workspace)
    return replace(starts if not failures else fails, has_begun=begun)


def of_elsewhere(serving: Serving) -> Condition:
    """Return the condition of a target that belongs to another machine."""
    standing = Standing.RUNNING if serving.is_live else Standing.ELSEWHERE
    return Condition(standing, serving.sentence)


def in_background(name: str, *, home: Path, workspace: Path | str, revives: bool = False) -> None:
    """Start a target from a separate background process.

    Args:
        revives: Do not start what a user has stopped, and do not end a keeper's pause.
    """
    location = TargetLocation(name, home)
    location.paths.log.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "rayjobs.target.background_start"]
    # A stop by a user after this start takes precedence.
    options = [
        f"--stop-seen={stop_record.last(location.paths).id}",
        *(["--revive"] if revives else []),
    ]
    with (location.paths.log / "background-start.log").open("ab") as output:
        child = subprocess.Popen(
            [*command, str(home), name, str(workspace), *options],
            env=local_head.head_environment(home, location.paths.token),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C here does not end it
            cwd="/",
        )
    # A thread that only reaps the child, if this process outlives it.
    threading.Thread(target=child.wait, daemon=True).start()


def started(location: TargetLocation) -> int:
    """Record that this process starts the target; return how often that has failed before."""
    known = Revival.read(location.paths)
    Revival(
        failures=known.failures,
        error=known.error if known.failures else None,
        **own_identity().to_json(),
    ).write(location.paths)
    return known.failures


def failed(location: TargetLocation, error: str, *, before: int) -> None:
    """Record why the target did not start; the next try waits longer than this one."""
    Revival(
        failures=before + 1,
        error=error,
        failed_at_s=_now_s(),
        boot_id=own_identity().boot_id,
    ).write(location.paths)


def _begin(location: TargetLocation, workspace: Path | str) -> bool:
    """Start a target in the background; return False if that is not possible."""
    try:
        known = Revival.read(location.paths)
        begun = replace(known, spawned_at_s=_now_s(), boot_id=own_identity().boot_id)
        begun.write(location.paths)
        in_background(location.name, home=location.home, workspace=workspace, revives=True)
    except OSError:
        return False  # the disk is full, or no process can start: the next command tries again
    return True


def _is_at_work(known: Revival) -> bool:
    """Whether a process is starting the target now."""
    if known.spawned_at_s is not None and _is_of_this_boot(known):
        since_s = _now_s() - known.spawned_at_s
        if 0 <= since_s < SPAWNED_WITHIN_S:
            return True
    return known.identity is not None and is_alive(known.identity)


def _pause_left_s(known: Revival) -> float:
    if known.failed_at_s is None or not _is_of_this_boot(known):
        return 0.0
    return pause_s(known.failures) - (_now_s() - known.failed_at_s)


def pause_s(failures: int) -> float:
    """Return how many seconds to wait after this number of failures in a row."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10)))


def _is_of_this_boot(known: Revival) -> bool:
    return known.boot_id == own_identity().boot_id


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
