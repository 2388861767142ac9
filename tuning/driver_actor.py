"""The actor a driver lives in: detached, named after its sweep, started again by the target.

Imported in Ray processes only.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray

from rayjobs.compute.actor import NAMESPACE, set_up_logging
from rayjobs.compute.starting import wake
from rayjobs.errors import RayjobsError, StoreError, StoreVersionError
from rayjobs.paths import TargetPaths
from rayjobs.store.base import Store
from rayjobs.workspace_files import open_workspace
from tuning.driver import STORE_PAUSE_S, Driver

log = logging.getLogger(__name__)

# Drivers that met an error nobody foresaw, with nothing done between them, until the sweep is
# given up.
MOST_FAULTS = 5
FAULT_EVENT = "driver_fault"
DRIVER_EVENT = "driver"  # its data has the process's number
LEAVE_AFTER_S = 5.0


def actor_name(sweep_id: str) -> str:
    """Return the name under which Ray knows the driver of a sweep."""
    return f"rayjobs-sweep-{sweep_id}"


class DriverActor:
    """Runs one sweep's driver; all that it knows is in the store."""

    def __init__(self, workspace: str, sweep_id: str, home: str, target: str) -> None:
        # Sockets of this home, whatever home the process was started with.
        os.environ["RAYJOBS_HOME"] = home
        set_up_logging(TargetPaths.of(target, under=Path(home)).log, "sweeps")
        ours = logging.getLogger("tuning")
        ours.handlers[:] = logging.getLogger("rayjobs").handlers
        ours.setLevel(logging.getLogger("rayjobs").level)
        ours.propagate = False
        self._workspace = workspace
        self._id = sweep_id
        self._home = Path(home)
        self._target = target
        self._lock = threading.Lock()

    def pid(self) -> int:
        """Return this process's number."""
        return os.getpid()

    def run(self) -> str:
        """Drive the sweep to its end; return its state.

        Called again while it runs (by a target actor that replaced another), it waits for the
        same end.
        """
        with self._lock:
            try:
                with open_workspace(self._workspace, create=False) as workspace:
                    return drive(workspace, self._id, wake_target=self._wake)
            finally:
                # Whoever waited ends this process, or is gone himself.
                leaving = threading.Timer(LEAVE_AFTER_S, os._exit, (0,))
                leaving.daemon = True
                leaving.start()

    def _wake(self) -> None:
        try:
            wake(self._target, home=self._home, workspace=self._workspace)
        except (TimeoutError, OSError) as error:
            log.info("the target was not woken, its poll finds the jobs: %s", error)


def drive(workspace: Any, sweep_id: str, *, wake_target: Callable[[], None]) -> str:
    """Drive a sweep to its end; one whose drivers fail and get nowhere is given up.

    A store that is locked or full is waited for, and is no fault.

    Raises:
        Exception: a fault of ours; it is kept in the sweep's history, and the next driver tries.
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
        log.exception("the driver of %s met a fault", sweep_id)
        fault = error
    text = f"{type(fault).__name__}: {fault}"
    done = progress(workspace.store, sweep_id)
    workspace.store.add_event(sweep_id, FAULT_EVENT, text, data={"progress": done})
    faults = [one for one in workspace.store.events(sweep_id) if one.kind == FAULT_EVENT]
    in_vain = sum(1 for one in faults if dict(one.data or {}).get("progress") == done)
    if in_vain < MOST_FAULTS:
        raise fault
    told = f"its driver failed {in_vain} times in the same place, the last time with {text}"
    if driver is not None:
        return str(driver.give_up(told))
    end_unreadable(workspace, sweep_id, told)
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
            raise  # no waiting helps
        except StoreError as error:
            log.warning("the driver of %s waits for its store: %s", sweep_id, error)
            time.sleep(STORE_PAUSE_S)


def progress(store: Store, sweep_id: str) -> list[int]:
    """Return how far a sweep is, as numbers that change with whatever a driver gets done."""
    trials = store.trials(sweep_id)
    return [
        len(trials),
        sum(trial.job is not None for trial in trials),
        sum(len(trial.reports) for trial in trials),
        sum(trial.judged for trial in trials),
        sum(trial.stop_requested for trial in trials),
        sum(trial.ended_at is not None for trial in trials),
    ]


def end_unreadable(workspace: Any, sweep_id: str, told: str) -> None:
    """End a sweep whose own definition cannot be read here (written by a later version)."""
    from rayjobs.failures import Failure, FailureClass
    from rayjobs.states import JobState

    claim = workspace.store.claim_sweep(sweep_id)
    if claim is not None:
        workspace.store.finish(
            sweep_id,
            attempt=claim,
            state=JobState.FAILED,
            reason=told,
            failure=Failure(FailureClass.SYSTEM, told),
        )


def start(workspace: str, sweep_id: str, *, home: str, target: str) -> Future[Any]:
    """Start (or find) the driver of a sweep; return a future that is done when it has ended.

    The target actor calls it, by its name in the sweep's record.
    """
    actor = (
        ray.remote(DriverActor)
        .options(
            name=actor_name(sweep_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,  # the target starts the next one, and knows whether one is needed
            max_concurrency=4,
        )
        .remote(workspace, sweep_id, home, target)
    )
    running = actor.run.options(name=f"sweep {sweep_id}").remote()
    ended: Future[Any] = Future()

    def follow() -> None:
        try:
            state = ray.get(running)
        except Exception as error:  # its own fault, or its death: the target decides
            result: Any = error
        else:
            result = None
        # Here, and not in a callback of Ray's: those run on the thread that would have to
        # deliver the answer. Its name is free afterwards.
        ray.kill(actor, no_restart=True)
        if result is None:
            ended.set_result(state)
        else:
            ended.set_exception(result)

    threading.Thread(target=follow, name=f"sweep {sweep_id}", daemon=True).start()
    return ended
