"""Reads how long jobs usually take, and records when waiting jobs are predicted to start.

The policy is pure: this module reads its history and stores its predictions, so that `rayjobs
report queue` can compare the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set
from datetime import timedelta

from rayjobs.core.clock import Clock
from rayjobs.core.errors import StoreError
from rayjobs.engine.board import Served
from rayjobs.engine.candidates import Learned
from rayjobs.jobs.queue_records import Durations, Prediction
from rayjobs.jobs.records import Job
from rayjobs.policy import Decisions
from rayjobs.policy.durations import HISTORY, SCRIPT
from rayjobs.policy.estimating import estimates as estimates_of

log = logging.getLogger(__name__)

# How often to reread the durations: if those of all entries are known, and if some are not.
LEARN_AGAIN_S = 30.0
LEARN_UNKNOWN_S = 2.0
# How often, at most, to estimate all waiting jobs while some have no estimate.
ESTIMATE_S = 2.0
# How often to check recorded predictions again; they are rewritten if they moved by more than a
# minute, or by more than this part of the wait.
AGAIN_S = 10.0
MOVED_S = 60.0
MOVED_PART = 0.25


class Forecasts:
    """One engine's knowledge of durations and its predictions."""

    def __init__(self, target: str, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._usual: dict[tuple[str, str], Learned] = {}
        self._requested: set[tuple[str, str]] = set()
        self._learned_s = float("-inf")
        self._seen: frozenset[str] = frozenset()
        self._predicted: dict[str, float] = {}  # key → the predicted start, seconds since 1970
        self._estimated_s = float("-inf")

    async def usual(
        self, entries: Set[tuple[str, str]], served: Sequence[Served]
    ) -> dict[tuple[str, str], Learned]:
        """Return the known durations by (experiment, entry).

        For a new experiment, these are the script's durations in all experiments of its workspace.

        Args:
            entries: The entries of the waiting jobs.
        """
        now_s = self._clock.monotonic_s()
        due_s = LEARN_AGAIN_S if entries <= self._usual.keys() else LEARN_UNKNOWN_S
        if entries <= self._requested and now_s - self._learned_s < due_s:
            return self._usual
        learned: dict[tuple[str, str], Learned] = {}
        for one in served:
            try:
                found = await one.ask(one.store.usual_durations, self._target)
            except StoreError as error:
                log.warning("durations of %s cannot be read: %s", one.path, error)
                continue
            for entry, known in found.items():
                before = learned.get(entry)
                # If several workspaces have such jobs, one may have more history.
                if before is None or before.basis == SCRIPT or not known.is_of_any:
                    learned[entry] = _learned(entry, known)
        self._usual, self._requested, self._learned_s = learned, set(entries), now_s
        return learned

    async def note(
        self, decisions: Decisions, job_of: Callable[[str], tuple[Served, Job] | None]
    ) -> None:
        """Record new or changed predictions of the starts of waiting jobs."""
        self._predicted = {
            key: at for key, at in self._predicted.items() if key in decisions.by_key
        }
        now_s = self._clock.monotonic_s()
        due_s = AGAIN_S if self._seen.issuperset(decisions.queue) else ESTIMATE_S
        if not decisions.queue or now_s - self._estimated_s < due_s:
            return
        self._estimated_s, self._seen = now_s, frozenset(decisions.queue)
        now = self._clock.now()
        news: dict[str, tuple[Served, list[Prediction]]] = {}
        # On a thread: it takes long with many waiting jobs. `decisions` keeps the result.
        estimates = await asyncio.to_thread(estimates_of, decisions)
        for key, (wait_s, basis) in estimates.items():
            found = job_of(key)
            if found is None:
                continue
            served, job = found
            starts_s = now.timestamp() + wait_s
            predicted = self._predicted.get(key)
            if predicted is not None and abs(starts_s - predicted) <= min(
                MOVED_S, MOVED_PART * max(wait_s, predicted - now.timestamp())
            ):
                continue
            if job.placed_at is not None:
                continue  # estimates are compared with its first start
            self._predicted[key] = starts_s
            starts_at = now + timedelta(seconds=wait_s)
            one = Prediction(job=job.id, starts_at=starts_at, basis=basis)
            news.setdefault(served.path, (served, []))[1].append(one)
        for served, predictions in news.values():
            try:
                await served.ask(served.store.note_predictions, predictions)
            except StoreError as error:
                log.warning("predictions cannot be stored in %s: %s", served.path, error)


def _learned(entry: tuple[str, str], known: Durations) -> Learned:
    basis = SCRIPT if known.is_of_any else HISTORY
    return Learned(known, basis, known.runs_of(*entry))
