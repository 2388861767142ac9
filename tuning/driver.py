"""A sweep's driver: it updates the trial table, asks for the next actions, and carries them out.

All its state is in the store, so it may die between any two lines: the next driver claims the sweep
and continues. A row is written before its job is submitted, each submit has its own key, and the
store refuses a driver whose claim is no longer the newest, which then ends.
"""

from __future__ import annotations

import difflib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from rayjobs.core.clock import Clock, SystemClock
from rayjobs.core.errors import StoreError, TakenOverError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.datastore.errors import DatastoreUnavailable
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import ChildNews, Job, MetricPoint
from rayjobs.jobs.states import FINAL, JobState
from rayjobs.results import metrics
from rayjobs.results.resuming import with_arguments
from rayjobs.snapshots.git import kept
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobChanges, JobFilter, NewJob
from rayjobs.tuning import warm_start
from rayjobs.tuning.arguments import override_arguments
from rayjobs.tuning.events import MetricMissing
from rayjobs.tuning.policies import Scheduler
from rayjobs.tuning.registering import register_best
from rayjobs.tuning.results import MODEL_MISSING, best_trial
from rayjobs.tuning.samplers import Sampler
from rayjobs.tuning.spec import SweepSpec, parse_sweep
from rayjobs.tuning.state import (
    REPORTS_WITHOUT_METRIC,
    Action,
    Finish,
    PlanTrial,
    StopTrial,
    Submit,
    SweepState,
    conclude,
    metric_missing,
)
from rayjobs.tuning.stored_results import store_results
from rayjobs.tuning.table import elapsed_s, load_state, row_of
from rayjobs.tuning.trials import TrialRecord, TrialState
from rayjobs.tuning.tune.scheduling import TuneScheduler
from rayjobs.workspace.folder import OpenWorkspace

log = logging.getLogger(__name__)

# How often a driver checks for writes, which takes microseconds; and after how long it does a round
# anyway, since time limits expire without any write.
POLL_S = 0.005
LOOK_S = 0.25
# The maximum share of a driver's time for rounds, however much others write.
MOST_BUSY = 1 / 3
# How long a driver waits for the datastore of the results. Several drivers follow each other (see
# `MOST_FAULTS`), so a sweep waits for about as long as a job does for its outputs.
OUTAGE_S = 60.0
STORE_PAUSE_S = 1.0
# While no trial has reported the metric, check this often what they report instead.
NAMES_S = 2.0
# Many scripts log a loss at each step, but the metric only after each epoch. A trial is noted at
# once only if it reports a similar name, else after it has reported other metrics for this time.
NO_METRIC_S = 30.0
TRIAL_TAG = "trial"
SWEEP_TAG = "sweep"
_REASONS_SHOWN = 5


@dataclass
class _Seen:
    """The known facts about a running trial's reports."""

    cursor: Any = field(default_factory=dict)
    points: list[MetricPoint] = field(default_factory=list)


class Driver:
    """Drives one sweep until it has ended. Not thread-safe.

    Args:
        wake: Called after jobs were submitted or canceled, so that the target checks at once.
    """

    def __init__(
        self,
        workspace: OpenWorkspace,
        sweep_id: str,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.workspace = workspace
        self.id = sweep_id
        self._store = workspace.store
        self._wake = wake
        self._clock = clock or SystemClock()
        self._claim: int | None = None
        self._seen: dict[str, _Seen] = {}
        self._names_looked_s = float("-inf")
        self.state = SweepState()
        sweep = self._store.sweep(sweep_id)
        self.spec: SweepSpec = parse_sweep(sweep.spec, where=f"sweep {sweep_id}")
        self._job: Job = sweep.job
        self._warm = warm_start.WarmStart()
        self._sampler: Sampler
        self._scheduler: Scheduler
        self._start_tune()

    def _start_tune(self) -> None:
        """Recreate sampler and scheduler, which know only the trials of earlier sweeps."""
        self._sampler = self.spec.sampling.sampler(self.spec.goal)
        if self._warm:
            self._sampler = warm_start.WarmSampler(self.spec.sampling, self._sampler, self._warm)
        self._scheduler = TuneScheduler(self.spec.policy, self.spec.goal, self._warm.earlier)

    # -- the loop ------------------------------------------------------------------------------
    def run(self, *, stopped: Callable[[], bool] = lambda: False) -> JobState:
        """Drive the sweep until it has ended; return its final state.

        Waits for a store that is locked or full. Returns the current state if `stopped` is true, or
        if another driver took over.

        Raises:
            DatastoreUnavailable: the results cannot be stored; it waited for `OUTAGE_S`.
        """
        outage_ends_s = math.inf
        while not stopped():
            try:
                if self._claim is None and not self.take_up():
                    break
                while not stopped():
                    began_s, change = self._clock.monotonic_s(), self._store.change()
                    ended = self.turn()
                    if ended is not None:
                        return ended
                    self._wait(change, took_s=self._clock.monotonic_s() - began_s)
            except StoreError as error:
                # The decision may not be stored: restart from the store.
                log.warning("sweep %s waits for its store: %s", self.id, error)
                self._claim = None
                time.sleep(STORE_PAUSE_S)
            except DatastoreUnavailable as error:
                outage_ends_s = min(outage_ends_s, self._clock.monotonic_s() + OUTAGE_S)
                if self._clock.monotonic_s() >= outage_ends_s:
                    raise
                log.warning("sweep %s waits for a datastore: %s", self.id, error)
                self._claim = None
                time.sleep(STORE_PAUSE_S)
            except TakenOverError:
                log.info("another driver now drives sweep %s", self.id)
                break
        return self._store.job(self.id).state

    def _wait(self, change: tuple[int, int], *, took_s: float) -> None:
        """Wait until something is written after `change`; meanwhile, free slots stay unused."""
        until_s = self._clock.monotonic_s() + LOOK_S
        time.sleep(min(max(POLL_S, took_s * (1 / MOST_BUSY - 1)), LOOK_S))
        while self._store.change() == change and self._clock.monotonic_s() < until_s:
            time.sleep(POLL_S)

    def take_up(self) -> bool:
        """Claim the sweep and repeat unfinished actions of an earlier driver; False if ended."""
        self._claim = self._store.claim_sweep(self.id)
        if self._claim is None:
            return False
        self._seen.clear()
        self._take_over()
        # What Tune was asked and told before may be unrecorded: it starts again from the table.
        self._start_tune()
        self._look_at_sweep()
        self.state = load_state(self._store, self._job, now=self._clock.now())
        known = {
            job.tags.get(TRIAL_TAG): job
            for job in self._store.jobs(JobFilter(parent=self.id, newest_first=False))
        }
        for trial in self.state.trials:
            job = known.get(str(trial.number))
            if trial.state is TrialState.PLANNED and job is not None:
                self.state = self.state.submitted(trial.number, job.id, at=job.submitted_at)
                self._record([trial.number])
        self._carry_out(self.state.pending_stops)
        return True

    def _take_over(self) -> None:
        """Read what the sweep takes over from earlier ones, and record it once."""
        self._warm = warm_start.load(self._store, self.spec, until=self._job.submitted_at)
        noted = (one.kind == warm_start.EVENT for one in self._store.events(self.id))
        if self._warm and not any(noted):
            self._store.add_event(self.id, warm_start.EVENT, self._warm.text(self.spec))

    def turn(self) -> JobState | None:
        """Do one round; return the sweep's final state once it has one.

        Raises:
            TakenOverError: another driver works on the sweep.
            StoreError: the store cannot be used now; `take_up` again.
        """
        self._look_at_sweep()
        if self._job.state.is_final:
            return self._job.state
        self._synchronise()
        self._look_for_names()
        actions = self.state.next_actions(self.spec, self._sampler, self._scheduler)
        for action in actions:
            if isinstance(action, Finish):
                return self._finish(action)
            self.state = self.state.applied(action)
        if actions:
            self._record([action.number for action in actions if not isinstance(action, Finish)])
            self._carry_out(actions)
        return None

    def _look_at_sweep(self) -> None:
        self._job = self._store.job(self.id)
        self.state = replace(
            self.state,
            elapsed_s=elapsed_s(self._job, now=self._clock.now()),
            cancel_requested=self._job.cancel_requested_at is not None,
        )

    # -- results of the jobs -------------------------------------------------------------------
    def _synchronise(self) -> None:
        running = {trial.job_id: trial for trial in self.state.active if trial.job_id is not None}
        cursors = {job: self._seen.setdefault(job, _Seen()).cursor for job in running}
        news = {
            one.job: one
            for one in self._store.child_news(self.id, metric=self.spec.metric, cursors=cursors)
        }
        changed: list[int] = []
        for trial in self.state.active:
            after = trial
            if trial.job_id is not None:
                one = news.get(trial.job_id)
                after = self._gone(trial) if one is None else self._followed(trial, one)
            elif trial.stop_requested:
                after = conclude(trial, None, self.spec, at=self._clock.now())
            if after != trial:
                self.state = self.state.with_trial(after)
                changed.append(trial.number)
        if changed:
            self._record(changed)
            self._look_for_model(changed)

    def _look_for_model(self, changed: Sequence[int]) -> None:
        """Record, once, that a completed trial stored nothing that could be registered."""
        if self.spec.register_as is None:
            return
        path = self.spec.model_path
        for trial in self.state.trials:
            if trial.number not in changed or trial.state is not TrialState.COMPLETED:
                continue
            names = [file.name for file in self._store.files(trial.job_id or "")]
            if any(name == path or name.startswith(f"{path.rstrip('/')}/") for name in names):
                continue
            if not any(event.kind == MODEL_MISSING for event in self._store.events(self.id)):
                text = (
                    f"trial {trial.number} completed without {path!r}, so it cannot be registered "
                    f"as model {self.spec.register_as!r}. Let the script write its model below "
                    f"outputs/, and name that file or folder as model_path"
                )
                self._store.add_event(self.id, MODEL_MISSING, text)

    def _followed(self, trial: TrialRecord, news: ChildNews) -> TrialRecord:
        """Return the trial with what its job logged, and its end if it has ended."""
        seen = self._seen[news.job]
        if news.state.is_final:
            # Read everything once more: late or reordered values are there now.
            points = self._store.metrics(news.job)
            trial = replace(
                trial,
                values=self._values(points),
                metric_names=tuple(dict.fromkeys(point.name for point in points)),
            )
            del self._seen[news.job]
            message = news.failure.message if news.failure is not None else news.reason
            return conclude(trial, news.state, self.spec, message=message, at=self._clock.now())
        seen.cursor = news.cursor
        if not news.points:
            return trial
        if news.attempt > 1:  # an attempt may hide points of an earlier one
            seen.points = self._store.metrics(news.job, name=self.spec.metric)
        else:
            seen.points.extend(news.points)
        return replace(trial, values=self._values(seen.points))

    def _look_for_names(self) -> None:
        """Record what running trials report instead of the metric, while none reports it."""
        now_s = self._clock.monotonic_s()
        if now_s - self._names_looked_s < NAMES_S or any(one.values for one in self.state.trials):
            return
        self._names_looked_s = now_s
        noted = []
        for trial in self.state.active:
            if trial.job_id is None:
                continue
            points = self._store.metrics(trial.job_id)
            counts = Counter(point.name for point in points)
            if not counts or max(counts.values()) < REPORTS_WITHOUT_METRIC:
                continue
            span = max(point.at for point in points) - min(point.at for point in points)
            looks_misspelt = bool(difflib.get_close_matches(self.spec.metric, counts, n=1))
            is_time = looks_misspelt or span.total_seconds() >= NO_METRIC_S
            if is_time and set(counts) != set(trial.metric_names):
                after = replace(trial, metric_names=tuple(counts))
                self.state = self.state.with_trial(after)
                noted.append(trial.number)
        if not noted:
            return
        self._record(noted)
        notice = metric_missing(self.state.trials, self.spec.metric)
        if notice is None:
            return
        found = (MetricMissing.of(event) for event in self._store.events(self.id))
        known = [one for one in found if one is not None]
        if not known or (notice.near and not any(one.near for one in known)):
            data = MetricMissing(notice.near).to_json()
            self._store.add_event(self.id, MetricMissing.KIND, notice.text, data=data)

    def _gone(self, trial: TrialRecord) -> TrialRecord:
        return conclude(
            trial,
            JobState.FAILED,
            self.spec,
            message=f"its job {trial.job_id} is no longer in the store",
            at=self._clock.now(),
        )

    def _values(self, points: Sequence[MetricPoint]) -> tuple[float, ...]:
        series = metrics.series(point for point in points if point.name == self.spec.metric)
        found = series.get(self.spec.metric)
        return () if found is None else found.values

    # -- actions -------------------------------------------------------------------------------
    def _record(self, numbers: Sequence[int]) -> None:
        assert self._claim is not None
        rows = [row_of(self.state.trials[number]) for number in dict.fromkeys(numbers)]
        if rows and not self._store.put_trials(self.id, claim=self._claim, trials=rows):
            raise TakenOverError(f"another driver now drives sweep {self.id}")

    def _is_replaced(self) -> bool:
        """Whether another driver took over: the open trials are that one's."""
        return self._claim is not None and not self._store.put_trials(
            self.id, claim=self._claim, trials=[]
        )

    def _carry_out(self, actions: Sequence[Action]) -> None:
        submitted: list[int] = []
        requested = False
        for action in actions:
            if isinstance(action, PlanTrial | Submit):
                job = self._submit(self.state.trials[action.number])
                self.state = self.state.submitted(action.number, job.id, at=self._clock.now())
                submitted.append(action.number)
            elif isinstance(action, StopTrial):
                job_id = self.state.trials[action.number].job_id
                if job_id is not None:
                    self._store.request_cancel(job_id, by=f"its sweep: {action.reason}")
                    requested = True
        if submitted or requested:
            self._wake()
        self._record(submitted)

    def _submit(self, trial: TrialRecord) -> Job:
        spec = trial_spec(self._job, self.spec, trial)
        if trial.number < len(self._warm.continued):
            spec = continued_spec(spec, self._warm.continued[trial.number].job_id)
        job, _ = self._store.submit(
            NewJob(
                spec=spec,
                experiment=self._job.experiment,
                snapshot=self._job.snapshot,
                properties=kept(self._job.properties),
                user=self._job.user,
                idempotency_key=trial_key(self.id, trial.number),
                parent=self.id,
                claim=self._claim,
            )
        )
        return job

    def _finish(self, finish: Finish) -> JobState:
        """End the sweep as decided; the next driver may call it again."""
        assert self._claim is not None
        if self._is_replaced():
            raise TakenOverError(f"another driver now drives sweep {self.id}")
        open_states = [state for state in JobState if state not in FINAL]
        for job in self._store.jobs(JobFilter(parent=self.id, states=open_states)):
            self._store.request_cancel(job.id, by="its sweep, which has ended")
        reason, failure = finish.reason, None
        best = best_trial(self.state.trials, self.spec.goal)
        if best is not None and best.job_id is not None:
            found = {
                "best_trial": str(best.number),
                "best_run": best.job_id,
                "best_primary_metric": repr(best.best(self.spec.goal)),
            }
            self._job = self._store.update(self.id, JobChanges(properties=found))
        if finish.state is JobState.COMPLETED:
            if self._job.state is JobState.RUNNING and not self._store.move(
                self.id, attempt=self._claim, old=JobState.RUNNING, new=JobState.FINALIZING
            ):
                raise TakenOverError(f"another driver now drives sweep {self.id}")
            store_results(self.workspace, self._job, self.spec, self.state.trials, best)
            if self.spec.register_as is not None and best is not None:
                reason += f"; {register_best(self.workspace, self._job, self.spec, best)}"
        if finish.state is JobState.FAILED:
            failure = failure_of(finish.reason, self.state)
        if not self._store.finish(
            self.id, attempt=self._claim, state=finish.state, reason=reason, failure=failure
        ):
            raise TakenOverError(f"another driver now drives sweep {self.id}")
        return finish.state

    def give_up(self, message: str) -> JobState:
        """End the sweep as Failed because of an internal error; its trials are canceled.

        Nothing changes if another driver took over. Returns the sweep's state.
        """
        if self._claim is None:
            self._claim = self._store.claim_sweep(self.id)
        if self._is_replaced():
            return self._store.job(self.id).state
        open_states = [state for state in JobState if state not in FINAL]
        for job in self._store.jobs(JobFilter(parent=self.id, states=open_states)):
            self._store.request_cancel(job.id, by="its sweep, which has failed")
        self._wake()
        if self._claim is not None:
            self._store.finish(
                self.id,
                attempt=self._claim,
                state=JobState.FAILED,
                reason=message,
                failure=Failure(FailureClass.SYSTEM, message),
            )
        return self._store.job(self.id).state


def trial_key(sweep_id: str, number: int) -> str:
    """Return the idempotency key of a trial's job."""
    return f"sweep:{sweep_id}:{number}"


def trial_spec(parent: Job, spec: SweepSpec, trial: TrialRecord) -> JobSpec:
    """Return a trial's job: the base job with its arguments overridden by the parameters."""
    base = parent.spec
    return base.model_copy(
        update={
            "arguments": override_arguments(base.arguments, trial.parameters),
            "display_name": f"{spec.name} {trial.number}",
            "tags": {**base.tags, SWEEP_TAG: parent.id, TRIAL_TAG: str(trial.number)},
        }
    )


def continued_spec(spec: JobSpec, run: str) -> JobSpec:
    """Return a trial's job that starts from the newest checkpoint of an earlier run.

    The script gets the checkpoint's folder as ``--resume-from``, as in Azure ML v1.
    """
    arguments = with_arguments(spec.arguments)
    return spec.model_copy(update={"arguments": arguments, "resume_from": run})


def failure_of(reason: str, state: SweepState) -> Failure:
    """Return why a sweep failed, with the reasons of its first failed trials."""
    reasons = [
        f"trial {trial.number}: {trial.reason}" if trial.is_reason_of_job else trial.reason
        for trial in state.trials
        if trial.state is TrialState.FAILED
    ]
    lines = reasons[:_REASONS_SHOWN]
    if len(reasons) > len(lines):
        lines.append(f"and {len(reasons) - len(lines)} more")
    return Failure(FailureClass.USER, reason, lines=tuple(lines))
