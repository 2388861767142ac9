"""Stops a local head with all its processes and files. No third-party package.

To stop a local head, the caller holds the keeper's lock: it is the keeper, or a client if no keeper
is alive. Some functions also serve attached clusters, which have no keeper.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core import short_tmp
from rayjobs.core.errors import TargetError
from rayjobs.core.files import read_message
from rayjobs.core.paths import TargetPaths, runtime_dir
from rayjobs.core.text import counted
from rayjobs.injob.answers import Answer
from rayjobs.injob.identity import Identity, identity_of, is_alive, send_signal
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.processes import all_pids, descendants, marked
from rayjobs.injob.warm_messages import WarmRequest
from rayjobs.target import local_head, wake_client
from rayjobs.target.answers import RetireAnswer, TargetAnswer
from rayjobs.target.local_head import command_of
from rayjobs.target.node_settings import node_root
from rayjobs.target.reports import Activity
from rayjobs.target.requests import TargetRequest

if TYPE_CHECKING:
    from rayjobs.injob.host_messages import HostFile

RETIRE_ANSWER_S = 20.0
SHORT_ANSWER_S = 5.0
HOST_GRACE_S = 45.0  # the default grace period is 10 s; `put_back` adds the jobs' own
LONGEST_S = 240.0  # a client waits some minutes for the whole stop
SETTLE_S = 3.0
POLITE_S = 5.0
KILLED_S = 20.0
POLL_S = 0.05
# The files that a stop removes. The target's definition, workspaces and logs stay.
_LIVE_FILES = (
    *("head.json", "activity.json", "capacity.json", "starting.log", "keeper.json"),
    *("revival.json", "pause.json", "local-settings.json"),
)
# Those of them that say why a start failed.
_FAILURE_FILES = ("starting.log", "revival.json")


class StopRefusedError(TargetError):
    """The target has unfinished jobs, so it was left as it is."""

    exit_code = 1  # the target was reached; it only refused the operation


@dataclass(frozen=True)
class TargetLocation:
    """The location of a target's files and sockets."""

    name: str
    home: Path

    @property
    def paths(self) -> TargetPaths:
        """Files of the target."""
        return TargetPaths.of(self.name, under=self.home)

    @property
    def socket(self) -> Path:
        """The wake socket of its actor."""
        return wake_client.socket_of(self.name, self.home)


def retire(location: TargetLocation, *, force: bool) -> None:
    """Ask the actor to take no more jobs.

    Once it agrees, it refuses wakes and starts nothing, so no job can start between this and the
    end of the head. This state lasts a minute; `resume` ends it earlier if the stop failed.

    Raises:
        StopRefusedError: jobs are queued or running, and `force` is off (`jobs` lists them).
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        busy, jobs = _refusal(location, force)
        if not busy or force:
            return
        # A job that has just ended may still be cleaned up.
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    listed = ", ".join(jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")
    raise StopRefusedError(
        f"target {location.name!r} has jobs that are not finished{': ' if listed else ''}{listed}."
        " Wait for them or cancel them, or stop it with --force: running jobs go back into "
        "the queue, and start again with the target.",
        jobs=jobs,
    )


def resume(location: TargetLocation) -> None:
    """Let the actor, if it still runs, start jobs again: the stop failed."""
    with contextlib.suppress(TimeoutError):  # it does so itself a little later
        wake_client.ask(
            location.socket, TargetRequest("resume"), TargetAnswer, timeout_s=SHORT_ANSWER_S
        )


@contextlib.contextmanager
def retired(location: TargetLocation, *, force: bool) -> Iterator[None]:
    """Keep the actor from starting jobs during the block, which stops it; see `retire`.

    If the block fails, the actor may start jobs again.

    Raises:
        StopRefusedError: as `retire`; errors of the block propagate.
    """
    retire(location, force=force)
    try:
        yield
    except BaseException:
        resume(location)
        raise


def _refusal(location: TargetLocation, force: bool) -> tuple[bool, list[str]]:
    """Return whether the target has work, and which, from its actor's answer or last report."""
    try:
        answer = _retire(location, force=force, timeout_s=RETIRE_ANSWER_S)
    except TimeoutError:
        answer = None
    if answer is not None and answer.ok:
        return False, []
    if answer is not None and answer.busy is not None:
        return answer.busy, list(answer.jobs)
    activity = Activity.read(location.paths)
    return activity is not None and activity.busy, []


def _retire(location: TargetLocation, *, force: bool, timeout_s: float) -> RetireAnswer | None:
    request = TargetRequest("retire", force=force)
    return wake_client.ask(location.socket, request, RetireAnswer, timeout_s=timeout_s)


def stop_head(location: TargetLocation, *, say: Callable[[str], None]) -> None:
    """End the attempts, warm interpreters, Ray, and all files and sockets of a local head.

    Idempotent; works even if any part of it is already dead.

    Raises:
        TargetError: a process could not be ended; the head's record is retained.
    """
    put_back(location, say)
    if _end_attempts(location, say):
        # Repeated, since ending attempts may outlast the first retirement.
        with contextlib.suppress(TimeoutError):
            _retire(location, force=True, timeout_s=SHORT_ANSWER_S)
    say("stopping Ray")
    clear_ray(location)
    end_warm(location)
    remove_files(location)


def put_back(location: TargetLocation, say: Callable[[str], None]) -> None:
    """Have the actor, if it runs, end running jobs and put them back into the queue.

    The actor stores their logs, metrics and checkpoints, and they resume at the next start. This
    returns when they have ended, or after a time limit; the next start also finds the other jobs.
    """
    began = time.monotonic()
    is_reported = False
    while True:
        try:
            answer = _retire(location, force=True, timeout_s=RETIRE_ANSWER_S)
        except TimeoutError:
            return
        if answer is None or not answer.live:
            return
        if time.monotonic() - began >= HOST_GRACE_S + min(answer.grace_s, LONGEST_S):
            return
        if not is_reported:
            say(f"putting {counted(answer.live, 'running job')} back into the queue")
        is_reported = True
        time.sleep(POLL_S)


def clear_ray(location: TargetLocation) -> None:
    """End this home's Ray processes and remove its folder; leave attempts alone.

    Raises:
        TargetError: a process could not be ended; Ray's folder is retained.
    """
    folder = local_head.ray_folder(location.home)
    _end_starters(location)
    _end_ray(location, folder)
    survivors = list(local_head.processes_of(folder))
    if survivors:
        raise TargetError(
            f"these processes of target {location.name!r} could not be ended: "
            + ", ".join(str(identity.pid) for identity in survivors)
            + ". Inspect them with ps, and stop the target again.",
            pids=[identity.pid for identity in survivors],
        )
    shutil.rmtree(folder, ignore_errors=True)
    location.paths.head.unlink(missing_ok=True)


def remove_files(location: TargetLocation, *, keep_progress: bool = False) -> None:
    """Remove what only a running head needs; remove folders if they are empty."""
    location.socket.unlink(missing_ok=True)
    for file in _LIVE_FILES:
        if not (keep_progress and file in _FAILURE_FILES):
            (location.paths.root / file).unlink(missing_ok=True)
    location.paths.token.unlink(missing_ok=True)
    folder = runtime_dir(location.home, create=False)
    short_tmp.clean(folder)
    for path in folder.glob("*"):
        if not path.is_dir() and not wake_client.is_listening(path):
            path.unlink(missing_ok=True)
    for empty in (location.paths.workspaces, location.paths.log, folder):
        with contextlib.suppress(OSError):
            empty.rmdir()


def end(identities: Iterable[Identity], *, polite_s: float = POLITE_S) -> None:
    """End processes: SIGTERM, then SIGKILL for those that still run after `polite_s`."""
    left = [identity for identity in identities if _signal(identity, signal.SIGTERM)]
    if not _wait_for_end(left, polite_s):
        for identity in left:
            _signal(identity, signal.SIGKILL)
        _wait_for_end(left, KILLED_S)


# The starter's module, and its former name, which an older keeper uses.
STARTERS = (b"rayjobs.engine.starter", b"rayjobs.compute.raylaunch")


def _end_starters(location: TargetLocation) -> None:
    """End starters whose keeper was killed: they would continue an unwanted start."""
    place_words = [os.fsencode(location.home), location.name.encode()]
    starters = [
        identity
        for pid in all_pids()
        if pid != os.getpid()
        and (words := command_of(pid).split(b"\0"))
        and any(
            word in STARTERS and words[at + 1 : at + 3] == place_words
            for at, word in enumerate(words)
        )
        and (identity := identity_of(pid)) is not None
    ]
    end(starters, polite_s=0.0)


def _end_ray(location: TargetLocation, folder: Path) -> None:
    record = local_head.load_record(location.paths)
    known = set(local_head.processes_of(folder))
    raylet = record.identity("raylet") if record else None
    if raylet is not None and is_alive(raylet):
        # A raylet ends its own children, but only after SIGTERM.
        known |= {
            identity
            for stat in descendants(raylet.pid)
            if (identity := identity_of(stat.pid)) is not None
        }
        end([raylet])
    else:
        end([identity for identity in known if _comm(identity) == "raylet"])
    # The rest needs no clean exit: the head's store was only in memory.
    for _ in range(10):
        known |= set(local_head.processes_of(folder))
        alive = [identity for identity in known if is_alive(identity)]
        if not alive:
            return
        end(alive, polite_s=0.0)


def _end_attempts(location: TargetLocation, say: Callable[[str], None]) -> bool:
    """End attempts that still run on this machine, through their hosts; False if none did."""
    hosts = list(_living_hosts(location))
    if hosts:
        say(f"ending {counted(len(hosts), 'running attempt')}")
    for host in hosts:
        _signal(host.identity, signal.SIGTERM)  # a host then ends its ranks and writes exit.json
    _wait_for_end([host.identity for host in hosts], HOST_GRACE_S)
    for host in hosts:
        _signal(host.identity, signal.SIGKILL)
        if host.marker:
            left = [identity_of(stat.pid) for stat in marked(host.marker)]
            end([found for found in left if found is not None], polite_s=0.0)
    return bool(hosts)


def _living_hosts(location: TargetLocation) -> Iterator[HostFile]:
    from rayjobs.injob.host_messages import HostFile  # of use only when a head is stopped

    # The head may have been started without the variable that names another folder.
    roots = {location.home / "node", node_root(location.home)}
    for path in chain.from_iterable((root / "attempts").glob("*/a*/host.json") for root in roots):
        if (path.parent / "exit.json").exists():
            continue
        host = read_message(path, HostFile)
        # A file that cannot be read is incomplete after a crash: its host never started.
        if host is not None and is_alive(host.identity):
            yield host


def end_warm(location: TargetLocation) -> None:
    """End warm interpreters: they run outside Ray and serve only this home.

    One that is still importing packages does not listen yet, so its command line identifies it.
    """
    folder = runtime_dir(location.home, create=False)
    for path in folder.glob("warm-*.sock"):
        with contextlib.suppress(TimeoutError):
            wake_client.ask(path, WarmRequest("stop"), Answer, timeout_s=2.0)
    wanted = os.fsencode(folder / "warm-")
    owners = [
        identity
        for pid in all_pids()
        if pid != os.getpid()
        and any(word.startswith(wanted) for word in command_of(pid).split(b"\0"))
        and (identity := identity_of(pid)) is not None
    ]
    if not _wait_for_end(owners, POLITE_S):
        end(owners, polite_s=1.0)


def _signal(identity: Identity, number: int) -> bool:
    try:
        return send_signal(identity, number)
    except PermissionError:
        return False  # another user's process, not ours


def _comm(identity: Identity) -> str:
    try:
        return Path(f"/proc/{identity.pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _wait_for_end(identities: list[Identity], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(is_alive(identity) for identity in identities):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
