"""The detached actor that drives all sweeps of a target, which restarts it when lost.

Imported only in Ray processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import RayjobsError, StoreError, StoreVersionError
from rayjobs.core.logs import set_up_logging
from rayjobs.core.paths import TargetPaths
from rayjobs.core.version import __version__
from rayjobs.datastore import credentials
from rayjobs.protocol.names import NAMESPACE
from rayjobs.store.base import Store
from rayjobs.target.secrets import TargetSecrets
from rayjobs.target.starting import wake
from rayjobs.tuning.driver import STORE_PAUSE_S, Driver
from rayjobs.tuning.events import DriverFault
from rayjobs.workspace.folder import needs_secrets, open_workspace

log = logging.getLogger(__name__)

# How many drivers may fail with an unforeseen error, without progress between them, before the
# sweep is given up.
MOST_FAULTS = 5
DRIVER_EVENT = "driver"  # its data has the pid
# An idle actor keeps its node from being scaled down, and uses memory; without it, the next sweep
# has to import Ray Tune again.
LINGER_S = 60.0
HOLD_S = 30.0
IDLE_POLL_S = 1.0
MOST_STARTS = 3


def actor_name(target: str) -> str:
    """Return the actor name of the process that drives a target's sweeps.

    After an upgrade, the new version drives new sweeps, and the old one drives running sweeps.
    """
    return f"rayjobs-sweeps-{target}-{__version__}"


class SweepsActor:
    """Drives sweeps, each on its own thread; all its state is in their stores.

    It ends its process after an idle time.
    """

    def __init__(self, home: str, target: str, clock: Clock | None = None) -> None:
        # Use the sockets of this home, whatever home the process was started with.
        os.environ["RAYJOBS_HOME"] = home
        set_up_logging(TargetPaths.of(target, under=Path(home)).log, "sweeps")
        import rayjobs.tuning.tune  # noqa: F401  # once, before a sweep waits for it

        self._home = Path(home)
        self._target = target
        self._clock = clock or SystemClock()
        self._running: dict[tuple[str, str], Future[str]] = {}
        self._held_until_s = self._clock.monotonic_s() + LINGER_S
        self._leaving: asyncio.Task[None] | None = None

    async def hold(self) -> int:
        """Keep running for a sweep that is about to arrive; return the pid of this process."""
        self._stay(HOLD_S)
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(self._leave_when_idle())
        return os.getpid()

    async def run(self, workspace: str, sweep_id: str) -> str:
        """Drive a sweep to its end; return its state.

        A second call during the run (by a target actor that replaced another) waits for the same
        end.
        """
        key = (workspace, sweep_id)
        if key not in self._running:
            ended: Future[str] = Future()
            self._running[key] = ended
            loop = asyncio.get_running_loop()
            ended.add_done_callback(lambda _: loop.call_soon_threadsafe(self._forget, key))
            threading.Thread(
                target=self._drive, args=(*key, ended), name=sweep_id, daemon=True
            ).start()
        # Shielded: the end of a caller ends only its wait, not the sweep's driver.
        return await asyncio.shield(asyncio.wrap_future(self._running[key]))

    def _forget(self, key: tuple[str, str]) -> None:
        del self._running[key]
        self._stay(LINGER_S)

    def _drive(self, path: str, sweep_id: str, ended: Future[str]) -> None:
        try:
            if needs_secrets(path):  # for the server of its records or files
                credentials.give(TargetSecrets(self._target, home=self._home).values())
            with open_workspace(path, create=False) as workspace:
                state = drive(workspace, sweep_id, wake_target=lambda: self._wake(path))
        except BaseException as error:  # the waiting caller must get every error
            ended.set_exception(error)
        else:
            ended.set_result(state)

    def _wake(self, workspace: str) -> None:
        try:
            wake(self._target, home=self._home, workspace=workspace)
        except (TimeoutError, OSError, RayjobsError) as error:
            log.info("the target was not woken; its poll will find the jobs: %s", error)

    def _stay(self, seconds: float) -> None:
        self._held_until_s = max(self._held_until_s, self._clock.monotonic_s() + seconds)

    async def _leave_when_idle(self) -> None:
        while self._running or self._clock.monotonic_s() < self._held_until_s:
            await asyncio.sleep(IDLE_POLL_S)
        log.info("no sweep to drive: the process exits")
        os._exit(0)


def drive(workspace: Any, sweep_id: str, *, wake_target: Callable[[], None]) -> str:
    """Drive a sweep to its end; give it up if its drivers fail without progress.

    A locked or full store is not a failure: the driver waits for it.

    Raises:
        Exception: an internal error, recorded in the sweep's history; the next driver tries again.
    """
    driver: Driver | None = None
    try:
        driver = _begun(workspace, sweep_id, wake_target)
        return str(driver.run())
    except StoreError:
        raise
    except RayjobsError as error:
        fault: Exception = error
    except Exception as error:
        log.exception("the driver of %s failed", sweep_id)
        fault = error
    text = f"{type(fault).__name__}: {fault}"
    here = DriverFault(progress(workspace.store, sweep_id))
    workspace.store.add_event(sweep_id, DriverFault.KIND, text, data=here.to_json())
    events = workspace.store.events(sweep_id)
    in_vain = sum(1 for event in events if DriverFault.of(event) == here)
    if in_vain < MOST_FAULTS:
        raise fault
    reason = f"its driver failed {in_vain} times in the same place, the last time with {text}"
    if driver is not None:
        return str(driver.give_up(reason))
    end_unreadable(workspace, sweep_id, reason)
    return str(workspace.store.job(sweep_id).state)


def _begun(workspace: Any, sweep_id: str, wake_target: Callable[[], None]) -> Driver:
    """Return the sweep's next driver, once the store can be used."""
    while True:
        try:
            driver = Driver(workspace, sweep_id, wake=wake_target)
            pid = os.getpid()
            workspace.store.add_event(
                sweep_id, DRIVER_EVENT, f"driven by process {pid}", data={"pid": pid}
            )
            return driver
        except StoreVersionError:
            raise  # waiting does not help
        except StoreError as error:
            log.warning("the driver of %s waits for its store: %s", sweep_id, error)
            time.sleep(STORE_PAUSE_S)


def progress(store: Store, sweep_id: str) -> tuple[int, ...]:
    """Return a sweep's progress, as numbers that change with everything a driver does."""
    trials = store.trials(sweep_id)
    return (
        len(trials),
        sum(trial.job is not None for trial in trials),
        sum(len(trial.reports) for trial in trials),
        sum(trial.judged for trial in trials),
        sum(trial.stop_requested for trial in trials),
        sum(trial.ended_at is not None for trial in trials),
    )


def end_unreadable(workspace: Any, sweep_id: str, reason: str) -> None:
    """End a sweep whose definition cannot be read here (a later version wrote it)."""
    from rayjobs.core.failures import Failure, FailureClass
    from rayjobs.jobs.states import JobState

    claim = workspace.store.claim_sweep(sweep_id)
    if claim is not None:
        workspace.store.finish(
            sweep_id,
            attempt=claim,
            state=JobState.FAILED,
            reason=reason,
            failure=Failure(FailureClass.SYSTEM, reason),
        )


def start(workspace: str, sweep_id: str, *, home: str, target: str) -> Future[Any]:
    """Drive a sweep in the target's sweep process, which is started if necessary.

    Returns a future that is done when the sweep's driver has ended. The target actor calls this
    function by its name in the sweep's record.
    """
    ended: Future[Any] = Future()

    def follow() -> None:
        try:
            actor = _actor(home, target)
            state = ray.get(actor.run.options(name=f"sweep {sweep_id}").remote(workspace, sweep_id))
        except Exception as error:  # its own error, or the process's death: the target decides
            ended.set_exception(error)
        else:
            ended.set_result(state)

    # Not in a Ray callback: callbacks run on the thread that must deliver the answer.
    threading.Thread(target=follow, name=f"sweep {sweep_id}", daemon=True).start()
    return ended


def _actor(home: str, target: str) -> Any:
    """Return the sweep process, which keeps running until it gets a sweep."""
    for left in reversed(range(MOST_STARTS)):
        actor = (
            ray.remote(SweepsActor)
            .options(
                name=actor_name(target),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=0,  # the target retries, and knows whether it is needed
            )
            .remote(home, target)
        )
        try:
            ray.get(actor.hold.remote())
            return actor
        except ray.exceptions.RayActorError:  # it was just exiting, or cannot start
            if not left:
                raise
            time.sleep(STORE_PAUSE_S)
    raise AssertionError("it was returned, or its error raised")
