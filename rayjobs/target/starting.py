"""Gets a client a running target: wakes it, or starts it if it does not run. No Ray."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rayjobs.core import extras, ids
from rayjobs.core.errors import TargetError
from rayjobs.core.files import locked, write_private
from rayjobs.core.paths import TargetPaths
from rayjobs.core.text import duration_text
from rayjobs.core.version import __version__
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.target import elsewhere, keeper_state, local_head, stop_record, wake_client
from rayjobs.target.answers import WakeAnswer
from rayjobs.target.machine import LocalSettings
from rayjobs.target.node_settings import NodeSettings
from rayjobs.target.record import load_target
from rayjobs.target.requests import TargetRequest
from rayjobs.target.start_processes import POLL_S, START_TIMEOUT_S, Follower, run_starter, spawn
from rayjobs.target.stopping import TargetLocation
from rayjobs.target.versions import check_client, must_replace
from rayjobs.workspace import registrations, server_choice
from rayjobs.workspace.folder import earlier_paths

STOPPING_POLL_S = 0.2
PROBE_BYTES = 2**16
WAKE_ANSWER_S = 2.0
PATIENT_ANSWER_S = 15.0
SPAWN_LIMIT = 3


class BeingStoppedError(TargetError):
    """The target exists and is being stopped."""


@dataclass(frozen=True)
class TargetStatus:
    """A target's answer.

    Attributes:
        name: The target.
        version: rayjobs version of the actor.
        epoch: Random name of this lifetime of the actor.
        served: Whether the actor serves the workspace of the wake; None if none was given.
        was_started: Whether this call waited for a start.
    """

    name: str
    version: str = ""
    epoch: str = ""
    served: bool | None = None
    was_started: bool = False


def register_workspace(paths: TargetPaths, workspace: Path | str) -> None:
    """Register a workspace with the target, so that a later actor finds it."""
    registrations.register(paths.workspaces, workspace)


def is_registered(paths: TargetPaths, workspace: Path | str) -> bool:
    """Whether the target was ever woken for a workspace, even if that has moved since."""
    if registrations.is_registered(paths.workspaces, workspace):
        return True
    for old in earlier_paths(workspace):
        if registrations.is_registered(paths.workspaces, old):
            registrations.follow(paths.workspaces, old, os.path.realpath(workspace))
            return True
    return False


def wake(name: str, *, home: Path, workspace: Path | str, registers: bool = True) -> bool:
    """Wake the target for work in `workspace`.

    Args:
        registers: Register the workspace first: a target started later serves it.

    Returns:
        False if `ensure_target` has work to do: no process listens, or the actor is being stopped
        or has an older rayjobs. True also for a process that listens but answers slowly, since it
        polls the store by itself.

    Raises:
        ServedElsewhereError: the target belongs to another machine, and does not run there.
        TargetError: the home cannot be written (its disk is full).
        StoreError: the workspace's store is in PostgreSQL, and cannot be reached.
    """
    if (server := server_choice.active()) is not None:
        return server.ask("POST", f"/v1/targets/{name}/wake", bool, repeats=True)
    location = TargetLocation(name, home)
    if (serving := elsewhere.find(workspace, name, home=home)) is not None:
        elsewhere.wake(workspace, serving)
        return True
    if registers:
        with _files_written(location):
            register_workspace(location.paths, workspace)
    stop_seen = stop_record.last(location.paths).id
    try:
        answer = _answer(location, workspace, WAKE_ANSWER_S)
    except TimeoutError:
        return True
    except BeingStoppedError:
        return False
    if answer is not None and registers:
        # The record of a stop that was refused, and whose client died before it cleared the record.
        stop_record.lift_if_free(location.paths, stop_seen)
    return answer is not None and not must_replace(answer.version, __version__)


def ensure_target(
    name: str,
    *,
    home: Path,
    workspace: Path | str | None = None,
    on_stage: Callable[[str], None] = lambda _text: None,
    timeout_s: float = START_TIMEOUT_S,
    is_patient: bool = False,
    revives: bool = False,
    stop_seen: str | None = None,
) -> TargetStatus:
    """Return when the target answers; start it if it does not run.

    Any number of clients may call this at once: they start one head, and all of them follow it.

    Args:
        workspace: Registered with the target, and woken.
        on_stage: Called with each stage's text as it begins ("starting Ray …").
        is_patient: If the start fails, a local target's keeper stays and retries with growing
            pauses: for a start in the background, whose failure no user sees.
        revives: Start nothing that a user has stopped, and leave a keeper's pause alone.
        stop_seen: The id of the last stop (`stop_record.last`) at the request for this start; a
            newer stop takes precedence. None: the request is made now.

    Raises:
        UsageError: a `RAYJOBS_LOCAL_*` variable is invalid.
        TargetError: the start failed (with its reason), was not done in `timeout_s`, a user has
            stopped the target (with `revives`, or since the request), or the home cannot be
            written (its disk is full).
        ServedElsewhereError: the target belongs to another machine, and does not run there.
        StoreError: the workspace's store is in PostgreSQL, and cannot be reached.
    """
    if (server := server_choice.active()) is not None:
        from rayjobs.workspace.http_messages import StartedTarget

        path = f"/v1/targets/{name}/start"
        started = server.ask("POST", path, StartedTarget, repeats=True)
        return TargetStatus(name=name, version=started.version, served=True)
    location = TargetLocation(name, home)
    if workspace is not None:
        serving = elsewhere.find(workspace, name, home=home)
        if serving is not None:
            elsewhere.wake(workspace, serving)
            return TargetStatus(name, serving.claimant.version, serving.epoch, served=True)
    with _files_written(location):
        start = _Start(
            location=location,
            workspace=workspace,
            on_stage=on_stage,
            timeout_s=timeout_s,
            is_patient=is_patient,
            revives=revives,
            stop_seen=stop_record.last(location.paths).id if stop_seen is None else stop_seen,
        )
        return start.ensure()


def lost_its_keeper(location: TargetLocation) -> bool:
    """Whether a head runs whose keeper was killed: a new keeper has to take over."""
    if keeper_state.is_kept(location.paths):
        return False
    head = local_head.load_record(location.paths)
    return head is not None and head.is_running


def _answer(
    location: TargetLocation, workspace: Path | str | None, limit_s: float
) -> WakeAnswer | None:
    """Return the target's answer, or None if no process listens.

    Raises:
        TimeoutError: A process listens and does not answer in time.
        BeingStoppedError: it exists but accepts no more jobs.
    """
    request = TargetRequest("ping")
    if workspace is not None:
        request = TargetRequest("wake", workspace=str(workspace), client=__version__)
    answer = wake_client.ask(location.socket, request, WakeAnswer, timeout_s=limit_s)
    if answer is not None and answer.stopping:
        raise BeingStoppedError(f"target {location.name!r} is being stopped")
    return answer if answer is not None and answer.ok else None


@contextlib.contextmanager
def _files_written(location: TargetLocation) -> Iterator[None]:
    """Report a full disk or a home without write access, with the path and a remedy."""
    try:
        yield
    except TimeoutError:
        raise  # not about a file: a process listens and does not answer
    except OSError as exc:
        raise local_head.StartError(
            f"target {location.name!r} cannot be started: {exc.filename or location.home}: "
            f"{exc.strerror or exc}. Free some space there, or set RAYJOBS_HOME to a folder that "
            f"can be written.",
            advice=local_head.start_again(location.name),
        ) from exc


def _check_space(location: TargetLocation) -> None:
    """Write and remove a file: on a full disk, a keeper could not even report why it ended."""
    probe = location.paths.root / f".space-probe.{ids.token(4)}"
    write_private(probe, "." * PROBE_BYTES)
    probe.unlink(missing_ok=True)


@contextlib.contextmanager
def start_lock(paths: TargetPaths) -> Iterator[None]:
    """Let one client at a time start or replace a target's processes."""
    paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(paths.lock):
        yield


@dataclass(frozen=True)
class _Start:
    """One call of `ensure_target`, which describes the fields."""

    location: TargetLocation
    workspace: Path | str | None
    on_stage: Callable[[str], None]
    timeout_s: float
    is_patient: bool
    revives: bool
    stop_seen: str

    def ensure(self) -> TargetStatus:
        """Return when the target answers; start or replace its processes as needed."""
        location = self.location
        record = load_target(location.name, home=location.home)
        if self.workspace is not None:
            register_workspace(location.paths, self.workspace)
        answer = self._patient_answer(self._deadline(), self.on_stage)
        was_started = answer is None
        if answer is not None and not self.revives:
            stop_record.lift_if_free(location.paths, self.stop_seen)
        if answer is None:
            extras.require(f"starting target {location.name!r}", "ray", "torch")
            with self._alone():  # a stop holds the lock until the target has ended completely
                pass
            answer = self._start_local() if record.is_local else self._start_attached()
        elif must_replace(answer.version, __version__):
            answer = self._replace()
            was_started = True
        elif record.is_local and lost_its_keeper(location):
            with self._alone():  # a stop may have ended the head since
                if lost_its_keeper(location):
                    spawn(location, ids.token(4), is_patient=True)
        location.paths.revival.unlink(missing_ok=True)
        check_client(answer.version, __version__)
        return TargetStatus(
            name=location.name,
            version=answer.version,
            epoch=answer.epoch,
            served=answer.served,
            was_started=was_started,
        )

    def _deadline(self) -> float:
        return time.monotonic() + self.timeout_s

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the start lock for a section that starts something.

        Each such section clears the record of an earlier stop by a user: another stop may come
        between two sections.

        Raises:
            TargetError: the stop is newer than this start, or this start only revives a dead
                target.
        """
        name, paths = self.location.name, self.location.paths
        with start_lock(paths):
            stop = stop_record.last(paths)
            if stop.is_in_force:
                if self.revives:
                    raise TargetError(
                        f"target {name!r} was stopped. Start it with `rayjobs target start {name}`."
                    )
                if stop.id != self.stop_seen:
                    raise TargetError(
                        f"target {name!r} was stopped while it was starting. Start it again with "
                        f"`rayjobs target start {name}`."
                    )
                stop_record.lift(paths)
            yield

    def _patient_answer(
        self, deadline: float, on_stage: Callable[[str], None] = lambda _text: None
    ) -> WakeAnswer | None:
        """Retry until the target answers or does not listen: actors are slow on a busy machine.

        Waits for a target that is being stopped until it is gone or serves again.
        """
        is_reported = False
        while True:
            try:
                return _answer(self.location, self.workspace, PATIENT_ANSWER_S)
            except BeingStoppedError as exc:
                if not is_reported:
                    on_stage(f"{exc.message}; waiting for that, then starting it again")
                is_reported = True
                if time.monotonic() >= deadline:
                    raise
                time.sleep(STOPPING_POLL_S)
            except TimeoutError as exc:
                if time.monotonic() >= deadline:
                    raise TargetError(
                        f"target {self.location.name!r} runs but does not answer: {exc}. "
                        f"See {self.location.paths.log}."
                    ) from exc

    def _start_local(self) -> WakeAnswer:
        """Start a keeper if none runs, and follow its start until the target answers."""
        location, paths = self.location, self.location.paths
        # Report an invalid setting immediately: this caller can correct it.
        LocalSettings.read()
        NodeSettings.read(local_head.LOCAL)
        local_head.ray_folder(location.home)
        follower = Follower(location, self.on_stage)
        deadline = self._deadline()
        spawned = 0
        while time.monotonic() < deadline:
            answer = self._patient_answer(deadline)
            if answer is not None:
                follower.look()
                return answer
            kept = keeper_state.is_kept(paths)
            if kept and (pause := keeper_state.pause_of(paths)) is not None:
                if spawned or self.revives:  # the try that this call requested has failed
                    raise TargetError(pause.sentence(location.name))
                keeper_state.give_up_pause(paths)
                time.sleep(POLL_S)
                continue
            if kept or spawned:  # without a keeper the lines are those of an earlier start
                follower.look()
            if not kept:
                # The keeper cleans up before it ends, and reports a failure after that.
                if spawned and follower.failure:
                    raise TargetError(follower.failure)
                with self._alone():
                    if not keeper_state.is_kept(paths):
                        if spawned >= SPAWN_LIMIT:
                            raise TargetError(
                                f"the keeper of target {location.name!r} ended repeatedly. "
                                f"See {paths.log}."
                            )
                        paths.progress.unlink(missing_ok=True)
                        _check_space(location)
                        spawn(location, ids.token(4), is_patient=self.is_patient)
                    spawned += 1
            time.sleep(POLL_S)
        raise TargetError(
            f"target {location.name!r} did not answer within {duration_text(self.timeout_s)}; "
            "it may still come "
            f"up. See {paths.log}."
        )

    def _start_attached(self) -> WakeAnswer:
        deadline = self._deadline()
        with self._alone():
            answer = self._patient_answer(deadline)
            if answer is None:
                answer = self._run_starter("actor", deadline)
        if answer is None:
            raise TargetError(
                f"the actor of target {self.location.name!r} runs, but not on this machine. A "
                f"workspace in a SQLite file serves targets of its own machine only; run this on "
                f"the cluster's node."
            )
        return answer

    def _replace(self) -> WakeAnswer:
        deadline = self._deadline()
        with self._alone():
            answer = self._patient_answer(deadline)
            old = answer.version if answer else ""
            if answer is None or must_replace(old, __version__):
                self.on_stage(f"replacing the target ({old or 'gone'} → {__version__})")
                answer = self._run_starter("replace", deadline)
        if answer is None:
            raise TargetError(
                f"target {self.location.name!r} was replaced and does not answer. See its log."
            )
        return answer

    def _run_starter(self, what: str, deadline: float) -> WakeAnswer | None:
        run_starter(self.location, what, on_stage=self.on_stage, timeout_s=self.timeout_s)
        return self._patient_answer(deadline)
