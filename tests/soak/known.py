"""What the soak knows about its jobs beyond `collect`: the expected results."""

from __future__ import annotations

import threading

from rayjobs.core.errors import RayjobsError
from rayjobs.jobs.states import JobState
from rayjobs.results import checkpoints
from rayjobs.store.base import Store
from rayjobs.store.requests import JobFilter
from rayjobs.workspace.folder import OpenWorkspace
from tests.checker.evidence import Evidence

LOOK_S = 0.2
# What a probe prints.
HERE = b"here\n"


class Watch:
    """Records the newest whole checkpoint of each job that waits for a retry.

    At the end it may be gone: an attempt that starts over saves the same steps again.
    """

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._seen: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        """Start the thread that watches."""
        self._thread.start()

    def end(self) -> dict[tuple[str, int], int]:
        """Stop, and return the steps by job and the attempt after which it waited."""
        assert self._thread.is_alive(), "the thread that watches checkpoints has died"
        self._over.set()
        self._thread.join()
        return self._seen

    def _look(self) -> None:
        store = self._workspace.store
        while not self._over.wait(LOOK_S):
            try:
                for job in store.jobs(JobFilter(states=[JobState.QUEUED])):
                    if job.attempt == 0:
                        continue
                    newest = checkpoints.newest(store, self._workspace.blobs, job.id)
                    now = store.job(job.id)
                    is_same = (now.state, now.attempt) == (JobState.QUEUED, job.attempt)
                    if newest is not None and is_same:
                        self._seen[job.id, job.attempt] = newest.step
            except RayjobsError:
                continue  # the store is locked just now


def known(evidence: Evidence, store: Store) -> None:
    """Add the exit codes of scripts, and what completed jobs logged and printed."""
    of_attempt = {(one.job, one.attempt, one.rank): one for one in evidence.ran}
    codes, curves = {}, {}
    written: dict[tuple[str, int], bytes] = {}
    for job in evidence.jobs:
        is_probe = job.name == "probe"
        codes[job.id] = 0 if is_probe else int(job.spec.arguments[1])
        if job.state is not JobState.COMPLETED:
            continue
        if is_probe:
            written[job.id, 0] = HERE
            continue
        curves[job.id] = [
            -1 if point.step is None else point.step for point in store.metrics(job.id, name="loss")
        ]
        for rank in range(job.spec.distribution.processes_per_node or 1):
            ran = of_attempt.get((job.id, job.attempt, rank))
            if ran is not None and ran.first is not None and ran.step is not None:
                steps = range(ran.first, ran.step)
                written[job.id, rank] = b"".join(b"step %d\n" % step for step in steps)
    evidence.codes, evidence.curves, evidence.written = codes, curves, written
