"""Warm start: what a sweep takes over from earlier sweeps of its workspace.

The trials of earlier sweeps are read from their own tables, never copied. Only trials that had
ended when the new sweep was submitted count, so that a driver that takes over finds the same ones.

Source: ``HyperDriveConfig(resume_from=, resume_child_runs=)`` of Azure ML v1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from rayjobs.core.errors import NotFoundError, Problem, UsageError
from rayjobs.core.numbers import is_number, is_whole
from rayjobs.core.text import counted, verb
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Job, Sweep
from rayjobs.results import checkpoints
from rayjobs.results.resuming import no_checkpoint
from rayjobs.store.base import Store
from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.expressions import Choice, Expression, QUniform, RandInt, Uniform
from rayjobs.tuning.samplers import Sampler, Sampling
from rayjobs.tuning.space import Parameters, SearchSpace, stripped
from rayjobs.tuning.spec import MAX_PARENTS, SweepSpec
from rayjobs.tuning.table import load_trials
from rayjobs.tuning.trials import TrialRecord, TrialState
from rayjobs.workspace.folder import OpenWorkspace

# Consecutive draws that were already tried, before one of them is used anyway: the choices may have
# no other point.
MAX_REPEATS = 1000
EVENT = "warm_start"


@dataclass(frozen=True)
class Continued:
    """A trial of an earlier sweep that continues as a trial of this one.

    Attributes:
        job_id: The earlier trial's run, whose newest checkpoint is the starting point.
    """

    job_id: str
    parameters: Parameters


@dataclass(frozen=True)
class WarmStart:
    """The knowledge before the first trial.

    Attributes:
        earlier: The ended trials of the sweeps in `resume_from`, in that order, numbered up to -1.
        continued: The n-th item is trial n of this sweep.
        missing: Earlier sweeps that are no longer in the store.
    """

    earlier: tuple[TrialRecord, ...] = ()
    continued: tuple[Continued, ...] = ()
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is taken over."""
        return bool(self.earlier or self.continued or self.missing)

    def text(self, spec: SweepSpec) -> str:
        """Return what is taken over, on one line."""
        parts = []
        if spec.resume_from:
            fitting = len(fitted(self.earlier, spec.sampling.space))
            part = (
                f"{counted(len(self.earlier), 'ended trial')} of {', '.join(spec.resume_from)} "
                f"{verb(len(self.earlier), 'informs', 'inform')} this sweep"
            )
            if fitting < len(self.earlier):
                outside = len(self.earlier) - fitting
                part += f"; {outside} of them {verb(outside, 'is', 'are')} outside its search space"
                part += ", and only the policy counts them"
            parts.append(part)
        if self.missing:
            parts.append(f"no longer in this workspace: {', '.join(self.missing)}")
        if self.continued:
            parts += [
                f"trial {number} continues {one.job_id}"
                for number, one in enumerate(self.continued)
            ]
        return "; ".join(parts)


def load(store: Store, spec: SweepSpec, *, until: datetime) -> WarmStart:
    """Return what a sweep takes over.

    Args:
        until: When the sweep was submitted: trials that ended later do not count.

    Raises:
        NotFoundError: a trial to continue is no longer in the store.
    """
    found: list[TrialRecord] = []
    missing = []
    for sweep_id in spec.resume_from:
        try:
            trials = load_trials(store, store.sweep(sweep_id).job.id)
        except NotFoundError:
            missing.append(sweep_id)
            continue
        found += [
            one
            for one in trials
            if one.is_final and one.ended_at is not None and one.ended_at <= until
        ]
    first = -len(found)
    earlier = tuple(replace(one, number=first + index) for index, one in enumerate(found))
    continued = tuple(
        Continued(run, _trial_of(store, run).parameters) for run in spec.resume_trials
    )
    return WarmStart(earlier, continued, tuple(missing))


def _trial_of(store: Store, run: str) -> TrialRecord:
    """Return the row of a trial's run.

    Raises:
        NotFoundError: there is no such run, or it is not a trial of a sweep.
    """
    job = store.job(run)
    if job.parent is not None:
        for trial in load_trials(store, store.sweep(job.parent).job.id):
            if trial.job_id == run:
                return trial
    raise NotFoundError(f"{run} is not a trial of a sweep", job=run)


# -- the check at the submit ------------------------------------------------------------------


def checked(workspace: OpenWorkspace, spec: SweepSpec) -> SweepSpec:
    """Return the sweep with the full ids of earlier sweeps and trials.

    Raises:
        SweepError: lists everything that is wrong with them.
    """
    if not spec.resume_from and not spec.resume_trials:
        return spec
    problems: list[Problem] = []
    sweeps = list(_sweeps(workspace.store, spec, problems))
    trials = list(_trials(workspace, spec, problems))
    _unless_twice("resume_from", [one.job.id for one in sweeps], problems)
    _unless_twice("resume_trials", [one.id for one in trials], problems)
    parents = {one.parent for one in trials}
    for path, count, what in (
        ("resume_from", len(spec.resume_from), "sweeps are given"),
        ("resume_trials", len(parents), "different sweeps have these trials"),
    ):
        if count > MAX_PARENTS:
            problems.append(Problem(path, f"{count} {what}.", f"Give {MAX_PARENTS} at most."))
    if len(spec.resume_trials) > spec.limits.total:
        problems.append(
            Problem(
                "resume_trials",
                f"{len(spec.resume_trials)} trials are more than limits.total, "
                f"{spec.limits.total}.",
                "Give fewer, or raise limits.total.",
            )
        )
    if problems:
        raise SweepError(problems=problems)
    named = spec.model_copy(
        update={
            "resume_from": tuple(one.job.id for one in sweeps),
            "resume_trials": tuple(one.id for one in trials),
        }
    )
    return _without_finished_points(workspace.store, named)


def _sweeps(store: Store, spec: SweepSpec, problems: list[Problem]) -> Iterator[Sweep]:
    for text in spec.resume_from:
        try:
            sweep = store.sweep(store.find(text).id)
        except (NotFoundError, UsageError) as error:
            problems.append(
                Problem("resume_from", _sentence(error), "`rayjobs sweep ls` lists the sweeps.")
            )
            continue
        metric, goal = sweep.spec.get("metric"), sweep.spec.get("goal")
        if (metric, goal) != (spec.metric, str(spec.goal)):
            problems.append(
                Problem(
                    "resume_from",
                    f"{sweep.job.id} has the goal to {str(goal).lower()} {metric}, and this sweep "
                    f"to {str(spec.goal).lower()} {spec.metric}: their values cannot be compared.",
                    "Use the same metric and goal, or leave that sweep out.",
                )
            )
            continue
        yield sweep


def _trials(workspace: OpenWorkspace, spec: SweepSpec, problems: list[Problem]) -> Iterator[Job]:
    store = workspace.store
    for text in spec.resume_trials:
        try:
            job = store.job(store.find(text).id)
            _trial_of(store, job.id)
        except (NotFoundError, UsageError) as error:
            message = _sentence(error)
            remedy = "`rayjobs sweep show SWEEP` lists the trials of a sweep."
        else:
            if not job.state.is_final:
                message, remedy = (
                    f"{job.id} is still {job.state}.",
                    "Wait for its end, or cancel it.",
                )
            elif checkpoints.newest(store, workspace.blobs, job.id) is None:
                message = no_checkpoint(store, job.id)
                remedy = "resume_from lets its result inform this sweep, without a checkpoint."
            else:
                yield job
                continue
        problems.append(Problem("resume_trials", message, remedy))


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".") + "."


def _unless_twice(path: str, found: Sequence[str], problems: list[Problem]) -> None:
    for one in sorted({one for one in found if found.count(one) > 1}):
        problems.append(Problem(path, f"{one} is given twice.", "Give it once."))


def _without_finished_points(store: Store, spec: SweepSpec) -> SweepSpec:
    """Return the sweep with its total limited to the points of the grid that remain.

    Raises:
        SweepError: none is left, so the sweep could only fail.
    """
    size = spec.sampling.size
    if size is None:
        return spec
    space = spec.sampling.space
    tried: set[str] = set()
    for sweep_id in spec.resume_from:
        tried |= _completed(load_trials(store, sweep_id), space)
    tried |= {_point(one.parameters) for one in _continued(store, spec, space)}
    left = size - len(tried) + len(spec.resume_trials)
    if left < 1:
        raise SweepError(
            problems=[
                Problem(
                    "resume_from",
                    f"all {size} points of the grid were completed by the earlier sweeps.",
                    "Add options to the grid; `rayjobs sweep best` has the best trial so far.",
                )
            ]
        )
    total = min(spec.limits.total, left)
    return spec.model_copy(update={"limits": spec.limits.model_copy(update={"total": total})})


def _continued(store: Store, spec: SweepSpec, space: SearchSpace) -> list[TrialRecord]:
    return fitted((_trial_of(store, run) for run in spec.resume_trials), space)


# -- the sampler --------------------------------------------------------------------------------


class WarmSampler:
    """A `Sampler` that knows the trials of earlier sweeps.

    The first trials are those to continue. A sampling that learns gets the earlier results;
    otherwise, points that an earlier trial completed are skipped.
    """

    def __init__(self, sampling: Sampling, inner: Sampler, warm: WarmStart) -> None:
        self._inner = inner
        self._learns = sampling.learns
        self._space = sampling.space
        self._warm = warm
        self._earlier = fitted(warm.earlier, sampling.space)
        continued = (
            TrialRecord(number=number, parameters=one.parameters)
            for number, one in enumerate(warm.continued)
        )
        self._continued = fitted(continued, sampling.space)
        self._tried = _completed(warm.earlier, sampling.space) | {
            _point(one.parameters) for one in self._continued
        }
        self._indices: list[int] = []  # points that are not skipped

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial, None if there is nothing left to try."""
        if trial_number < len(self._warm.continued):
            return dict(self._warm.continued[trial_number].parameters)
        if self._learns:
            self._inner.replay([*self._earlier, *self._continued])
            return self._inner.suggest(trial_number)
        position = trial_number - len(self._warm.continued)
        while len(self._indices) <= position:
            index = self._following()
            if index is None:
                return None
            self._indices.append(index)
        return self._inner.suggest(self._indices[position])

    def _following(self) -> int | None:
        start = self._indices[-1] + 1 if self._indices else 0
        for index in range(start, start + MAX_REPEATS):
            found = self._inner.suggest(index)
            if found is None:
                return None
            if _point(found) not in self._tried:
                return index
        return start

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn the result of a trial; None if it has none."""
        if self._learns and self._is_known(trial_number):
            self._inner.tell(trial_number, value)

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn every trial of earlier sweeps, and every recorded one."""
        if self._learns:
            known = [one for one in records if self._is_known(one.number)]
            continued = {one.number: one.parameters for one in self._continued}
            own = [
                replace(one, parameters=continued.get(one.number, one.parameters)) for one in known
            ]
            self._inner.replay([*self._earlier, *own])

    def _is_known(self, number: int) -> bool:
        """Return whether a trial's parameters are a point of the search space."""
        return number >= len(self._warm.continued) or any(
            one.number == number for one in self._continued
        )


def fitted(trials: Iterable[TrialRecord], space: SearchSpace) -> list[TrialRecord]:
    """Return the trials whose parameters are a point of `space`, with the keys of `space`."""
    found = []
    for trial in trials:
        given = {stripped(key): value for key, value in trial.parameters.items()}
        if set(given) != {stripped(key) for key in space}:
            continue
        parameters = {key: given[stripped(key)] for key in space}
        if all(_holds(expression, parameters[key]) for key, expression in space.items()):
            found.append(replace(trial, parameters=parameters))
    return found


def _completed(trials: Iterable[TrialRecord], space: SearchSpace) -> set[str]:
    completed = (one for one in trials if one.state is TrialState.COMPLETED)
    return {_point(one.parameters) for one in fitted(completed, space)}


def _point(parameters: Mapping[str, Any]) -> str:
    named = {stripped(key): value for key, value in parameters.items()}
    return json.dumps(named, sort_keys=True)


def _holds(expression: Expression, value: Any) -> bool:
    """Return whether `expression` can give `value`."""
    if isinstance(expression, Choice):
        return json.dumps(value) in [json.dumps(option) for option in expression.different]
    if isinstance(expression, QUniform):
        low, high = expression.indices
        return (
            is_whole(value) and value % expression.q == 0 and low <= value // expression.q <= high
        )
    if isinstance(expression, RandInt):
        return is_whole(value, at_least=0) and value < expression.upper
    if type(expression) is Uniform:
        return is_number(value) and expression.min_value <= value <= expression.max_value
    return is_number(value)
