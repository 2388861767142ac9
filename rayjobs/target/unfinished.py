"""The unfinished jobs of a target, from the stores of all the workspaces that it serves."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import RayjobsError, TargetError
from rayjobs.core.text import counted, verb
from rayjobs.core.users import user_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import JobLine
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.store.requests import JobFilter
from rayjobs.target import abandoned, keeper, reach, starting, stop_record, wake_client
from rayjobs.target.record import all_targets, load_target
from rayjobs.target.stopping import StopRefusedError, TargetLocation
from rayjobs.workspace.folder import WorkspaceFiles, open_workspace
from rayjobs.workspace.registrations import registered

if TYPE_CHECKING:
    from rayjobs.jobs.records import Job
    from rayjobs.store.base import Store

UNFINISHED = [state for state in JobState if state not in FINAL]
LISTED = 10
POLL_S = 0.2
CANCEL_S = 90.0  # in addition to the longest grace period of the jobs
AGE_S = 60.0


@dataclass(frozen=True)
class Unfinished:
    """Jobs of a target that have not ended; an array counts as one job.

    Attributes:
        running: Jobs with an allocation, each with its workspace.
        waiting: Jobs that wait for one.
        unreadable: Workspaces whose store cannot be read, with the reason.
    """

    running: tuple[tuple[Path, JobLine], ...] = ()
    waiting: tuple[tuple[Path, JobLine], ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any such job."""
        return bool(self.running or self.waiting)

    @property
    def all(self) -> tuple[tuple[Path, JobLine], ...]:
        """The running jobs, then the waiting ones."""
        return self.running + self.waiting

    @property
    def text(self) -> str:
        """Return the counts, in words."""
        parts = [
            counted(len(self.running), "running job") if self.running else "",
            counted(len(self.waiting), "waiting job") if self.waiting else "",
        ]
        return " and ".join(part for part in parts if part)

    def still(self, now: Unfinished) -> Unfinished:
        """Return the jobs of `now`, divided into those that ran here and all others.

        Their states in `now` do not tell, since a stop turns running jobs into waiting ones.
        """
        found = {job.id: (path, job) for path, job in now.all}
        ran = {job.id for _path, job in self.running}
        waiting = [one for name, one in found.items() if name not in ran]
        running = [one for name, one in found.items() if name in ran]
        return Unfinished(tuple(running), tuple(waiting), now.unreadable)

    def lines(self) -> list[str]:
        """Return a line for each of the first few."""
        listed = [
            f"  {job.state!s:<12} {job.id}  {job.name}  ({path})" for path, job in self.all[:LISTED]
        ]
        more = len(self.all) - LISTED
        return [*listed, f"  and {more} more"] if more > 0 else listed


def of_target(name: str, *, home: Path, but: Path | None = None) -> Unfinished:
    """Return the unfinished jobs of a target.

    Args:
        but: A workspace to leave out.
    """
    running: list[tuple[Path, JobLine]] = []
    waiting: list[tuple[Path, JobLine]] = []
    unreadable: list[tuple[Path, str]] = []
    for path in served(TargetLocation(name, home)):
        if path == but or not WorkspaceFiles(path).record.exists():
            continue  # it was removed with its jobs
        try:
            with open_workspace(path, create=False) as opened:
                jobs = opened.store.job_lines(
                    JobFilter(states=UNFINISHED, target=name, members=False, newest_first=False)
                )
        except RayjobsError as error:
            unreadable.append((path, error.message))
            continue
        for job in jobs:
            is_waiting = job.state is JobState.QUEUED or (
                job.kind == "array" and job.placed_at is None
            )
            (waiting if is_waiting else running).append((path, job))
    return Unfinished(tuple(running), tuple(waiting), tuple(unreadable))


def served(location: TargetLocation) -> list[Path]:
    """Return the workspaces that were registered with a target."""
    return [Path(path) for path in registered(location.paths.workspaces)]


def check_not_served(workspace: Path, *, home: Path) -> None:
    """Check that no running target may use the store of a workspace.

    Raises:
        TargetError: a target that is registered for it answers.
    """
    for record in all_targets(home=home):
        location = TargetLocation(record.name, home)
        if wake_client.is_listening(location.socket) and starting.is_registered(
            location.paths, workspace
        ):
            raise TargetError(
                f"target {record.name!r} runs and uses the workspace {workspace}: its store cannot "
                f"be replaced now. Stop it first: `rayjobs target stop {record.name}`"
            )


def why_unreached(name: str, *, home: Path) -> tuple[str, str]:
    """Return the address of a target's cluster ("" if local) and why it cannot be reached, or "".

    Raises:
        NotFoundError: no such target.
    """
    address = load_target(name, home=home).address or ""
    return address, reach.why_unreachable(address) if address else ""


def cancel(
    name: str,
    jobs: Unfinished,
    *,
    home: Path,
    say: Callable[[str], None],
    command: str = "stop",
    is_reached: bool = True,
    is_stopped: bool = False,
) -> list[str]:
    """Cancel jobs until all have ended, and return the canceled; start a dead target to end them.

    A job that ended by itself meanwhile is not among the returned ids.

    Args:
        command: The subcommand of `rayjobs target` that cancels them.
        is_reached: Whether the target's cluster answers. If not, this only requests the end of jobs
            with an allocation, since they may still run; it does not wait for them or return their
            ids.
        is_stopped: The target was stopped, so none of its processes runs: this ends the jobs in
            their stores without starting it.

    Raises:
        TargetError: they did not end in time, or the target that has to end them does not start.
    """
    by_workspace: dict[Path, list[JobLine]] = {}
    for path, job in jobs.all:
        by_workspace.setdefault(path, []).append(job)
    if jobs.running and is_reached:
        say(f"canceling {jobs.text}")
    with contextlib.ExitStack() as stack:
        stores = {
            path: stack.enter_context(open_workspace(path, create=False)).store
            for path in by_workspace
        }
        left: list[tuple[Path, JobLine]] = []
        for path, job in jobs.all:
            by = f"{user_name()} with `rayjobs target {command} {name}`"
            if is_stopped:
                abandoned.end(stores[path], job.id, by=by, why="its target had been stopped")
            elif not stores[path].request_cancel(job.id, by=by).is_final:
                left.append((path, job))
        if not is_reached:
            return _canceled(stores, jobs)
        grace_s = max((stores[path].job(job.id).spec.grace_s for path, job in left), default=0.0)
        for path in {path for path, _job in left}:
            starting.ensure_target(name, home=home, workspace=path, on_stage=say)
        deadline = time.monotonic() + CANCEL_S + grace_s
        while left := [one for one in left if not stores[one[0]].job(one[1].id).state.is_final]:
            if time.monotonic() >= deadline:
                listed = ", ".join(job.id for _path, job in left[:LISTED])
                raise TargetError(
                    f"{counted(len(left), 'job')} did not end after the cancel: {listed}. "
                    f"`rayjobs why` says why; `rayjobs target {command} {name} --force` does "
                    f"it anyway."
                )
            time.sleep(POLL_S)
        canceled = _canceled(stores, jobs)
    if by_themselves := len(jobs.all) - len(canceled):
        say(f"{counted(by_themselves, 'job')} ended meanwhile, before the cancel")
    return canceled


def _canceled(stores: Mapping[Path, Store], jobs: Unfinished) -> list[str]:
    """Return the ids of the jobs that ended by a cancel, not by themselves."""
    return [job.id for path, job in jobs.all if _is_canceled(stores[path].job(job.id))]


def _is_canceled(job: Job) -> bool:
    # One failed job makes an array fail, also if the cancel ended the others.
    is_of_jobs = job.kind != "job" and job.cancel_requested_at is not None
    return job.state is JobState.CANCELED or (is_of_jobs and job.state is JobState.FAILED)


def cancel_for_good(
    name: str, jobs: Unfinished, *, home: Path, say: Callable[[str], None]
) -> list[str]:
    """Cancel the jobs of a target that is about to be removed; return the ids of the canceled.

    If its cluster is unreachable, this ends their records: no other process will.

    Raises:
        TargetError: they did not end in time.
    """
    why = abandoned.why_gone(name, home=home)
    if not why:
        return cancel(name, jobs, home=home, say=say, command="rm")
    by = f"{user_name()} with `rayjobs target rm {name}`"
    canceled: list[str] = []
    for path, job in jobs.all:
        with open_workspace(path, create=False) as opened:
            abandoned.end(opened.store, job.id, by=by, why=why)
            if _is_canceled(opened.store.job(job.id)):
                canceled.append(job.id)
    if jobs.running:
        say(f"{why}. Processes of its jobs may still run there")
    return canceled


def older(name: str, *, home: Path, than: str | None = None) -> str:
    """Return a sentence about other jobs that a start of the target would start; empty if none.

    Args:
        than: The job that is being submitted; it does not count.
    """
    # Young jobs are left out: in a burst of submits, each would report the others. Jobs that waited
    # when a user stopped the target are always reported: the user may expect them to stay queued.
    since = datetime.now(UTC) - timedelta(seconds=AGE_S)
    stopped_at = datetime.fromtimestamp(stop_record.last(TargetLocation(name, home).paths).at, UTC)
    jobs = [
        (path, job)
        for path, job in of_target(name, home=home).all
        if job.id != than and job.submitted_at < max(since, stopped_at)
    ]
    if not jobs:
        return ""
    first = min(jobs, key=lambda one: one[1].submitted_at)[1]
    days = (datetime.now(UTC) - first.submitted_at).days
    age = f", the oldest {counted(days, 'day')} old" if days else ""
    starts = verb(len(jobs), "starts", "start")
    return (
        f"{counted(len(jobs), 'older job')} of target {name!r} {starts} with it{age} (first: "
        f"{first.id}). `rayjobs ls` lists them, `rayjobs cancel` ends those that you no longer need"
    )


def check_none(name: str, jobs: Unfinished, *, command: str, unreached: str = "") -> None:
    """Check that a target has no unfinished job.

    Args:
        unreached: The unreachable address of its cluster and the reason; empty: it is reachable.

    Raises:
        StopRefusedError: it has some; the message lists them and the remedies.
        TargetError: it has some, and its cluster is unreachable.
    """
    if not jobs:
        return
    listed = "\n".join(jobs.lines())
    kept = "running jobs go back into the queue, and all of them start with the next start"
    if command == "rm":
        kept = "they stay in the store, and wait for a target of that name to be created"
    if unreached and command == "rm":
        raise TargetError(
            f"target {name!r} has {jobs.text}, and its cluster cannot be reached at "
            f"{unreached}\n{listed}\n"
            f"Nothing was removed. `rayjobs target rm {name} --cancel` ends their records without "
            f"the cluster; with --force {kept}.",
            jobs=[job.id for _path, job in jobs.all],
        )
    if unreached:
        raise TargetError(
            f"target {name!r} has {jobs.text}, and its cluster cannot be reached at "
            f"{unreached}\n{listed}\n{what_becomes(name, jobs)}\n"
            f"Nothing was stopped. Wait until the cluster answers, or use `rayjobs target "
            f"{command} {name} --cancel`: it cancels the waiting jobs, and asks the running ones "
            f"to end. With --force all of them are kept.",
            jobs=[job.id for _path, job in jobs.all],
        )
    raise StopRefusedError(
        f"target {name!r} has {jobs.text}:\n{listed}\n"
        f"Wait for them (`rayjobs wait`), or end them with `rayjobs target {command} {name} "
        f"--cancel`. With --force they are kept: {kept}.",
        jobs=[job.id for _path, job in jobs.all],
    )


def what_becomes(name: str, jobs: Unfinished) -> str:
    """Return what happens to the jobs of a target with an unreachable cluster after a stop."""
    sentences = []
    if jobs.running:
        sentences.append(
            f"Running jobs may continue there unobserved; their state is known again once "
            f"`rayjobs target start {name}` reaches the cluster."
        )
    if jobs.waiting:
        sentences.append(
            f"Waiting jobs stay queued until `rayjobs target start {name}` reaches the cluster."
        )
    return " ".join(sentences)


def main(arguments: list[str]) -> int:
    """Look for unfinished jobs of a target: ``-m rayjobs.target.unfinished HOME NAME``.

    Returns:
        `keeper.NO_JOBS` if there are none; 0 if there are some or a store cannot be read.
    """
    home, name = arguments
    jobs = of_target(name, home=Path(home))
    return 0 if jobs or jobs.unreadable else keeper.NO_JOBS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
