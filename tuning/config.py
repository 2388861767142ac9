"""HyperDriveConfig: a sweep in Azure ML's terms, converted to a SweepSpec."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rayjobs.api.submitters import register
from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_whole
from rayjobs.tuning.errors import SweepError, SweepUsageError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies import NoTerminationPolicy, Policy
from rayjobs.tuning.samplers import BayesianParameterSampling, Sampling
from rayjobs.tuning.spec import (
    MAX_CONCURRENT,
    MAX_PARENTS,
    MAX_TOTAL,
    SweepSpec,
    parse_sweep,
)

MAX_DURATION_MINUTES = 10_080
NO_PIPELINES = (
    "pipeline was given, but a sweep's trials are single jobs. Sweep the step that trains: "
    "HyperDriveStep makes a sweep a step of a pipeline."
)
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")


class HyperDriveConfig:
    """What to sweep: an estimator or run configuration, and how to choose its parameters.

    The estimator or run configuration is stored unchanged; `sweep_spec` gets its job.

    Attributes:
        advice: Allowed but unwise settings, one sentence each (also issued as warnings).

    Raises:
        SweepError: lists every argument that is wrong.

    Source: ``azureml.train.hyperdrive.HyperDriveConfig`` (names, order, defaults, limits).
    """

    def __init__(
        self,
        hyperparameter_sampling: Sampling,
        primary_metric_name: str,
        primary_metric_goal: PrimaryMetricGoal,
        max_total_runs: int,
        max_concurrent_runs: int | None = None,
        max_duration_minutes: float = MAX_DURATION_MINUTES,
        policy: Policy | None = None,
        estimator: Any = None,
        run_config: Any = None,
        resume_from: Any = None,
        resume_child_runs: Sequence[Any] | None = None,
        pipeline: Any = None,
        debug_flag: Any = None,
        custom_run_id: str | None = None,
    ) -> None:
        self.hyperparameter_sampling = hyperparameter_sampling
        self.primary_metric_name = primary_metric_name
        self.primary_metric_goal = primary_metric_goal
        self.max_total_runs = max_total_runs
        self._concurrent_given = max_concurrent_runs is not None
        self.max_concurrent_runs = (
            max_concurrent_runs if max_concurrent_runs is not None else max_total_runs
        )
        self.max_duration_minutes = max_duration_minutes
        self.policy = policy if policy is not None else NoTerminationPolicy()
        self.estimator = estimator
        self.run_config = run_config
        self.pipeline = pipeline
        self.resume_from = _listed(resume_from)
        self.resume_child_runs = _listed(resume_child_runs)
        self.debug_flag = debug_flag
        self.custom_run_id = custom_run_id
        problems = self._problems()
        if problems:
            raise SweepError(problems=problems)
        self.primary_metric_goal = PrimaryMetricGoal(primary_metric_goal)
        self._warn()

    def __repr__(self) -> str:
        """Return the base, the sampling and the metric as text."""
        return (
            f"{type(self).__name__}({self.base!r}, {type(self.hyperparameter_sampling).__name__}, "
            f"{self.primary_metric_name!r}, {self.primary_metric_goal.value}, "
            f"max_total_runs={self.max_total_runs}, "
            f"max_concurrent_runs={self.max_concurrent_runs}, "
            f"policy={type(self.policy).__name__})"
        )

    @property
    def source_directory(self) -> str | None:
        """The folder whose code is swept."""
        found: str | None = getattr(self.base, "source_directory", None)
        return found

    @property
    def base(self) -> Any:
        """The given estimator, run configuration or pipeline."""
        return next(
            given for given in (self.estimator, self.run_config, self.pipeline) if given is not None
        )

    def sweep_spec(
        self, job: Mapping[str, Any], *, name: str = "sweep", register_as: str | None = None
    ) -> SweepSpec:
        """Return the sweep of `job`, the estimator's or run configuration's job spec as data.

        Raises:
            SweepError: the parts do not form a sweep.
            SweepUsageError: a sweep of a pipeline was requested.
        """
        if self.pipeline is not None:
            raise SweepUsageError(NO_PIPELINES)
        return parse_sweep(
            {
                "name": name,
                "job": job,
                "sampling": self.hyperparameter_sampling,
                "policy": self.policy,
                "metric": self.primary_metric_name,
                "goal": self.primary_metric_goal,
                "limits": {
                    "total": self.max_total_runs,
                    "concurrent": min(self.max_concurrent_runs, MAX_CONCURRENT),
                    "max_duration_s": self.max_duration_minutes * 60.0,
                },
                "register_as": register_as,
                "resume_from": [_id_of(run) for run in self.resume_from],
                "resume_trials": [_id_of(run) for run in self.resume_child_runs],
            }
        )

    def _problems(self) -> list[Problem]:
        found: list[Problem] = []

        def wrong(path: str, message: str, remedy: str) -> None:
            found.append(Problem(path, message, remedy))

        given = [
            name
            for name in ("estimator", "run_config", "pipeline")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            wrong(
                "run_config",
                f"exactly one of estimator, run_config and pipeline is needed, and "
                f"{' and '.join(given) or 'none'} was given.",
                "Give only run_config=ScriptRunConfig(...).",
            )
        if not _is(self.hyperparameter_sampling, Sampling):
            wrong(
                "hyperparameter_sampling",
                f"{self.hyperparameter_sampling!r} is not a sampling.",
                "Give e.g. RandomParameterSampling({'--lr': loguniform(-9, -2)}).",
            )
        if not _is(self.policy, Policy):
            wrong("policy", f"{self.policy!r} is not a policy.", "Give e.g. BanditPolicy(...).")
        if not isinstance(self.primary_metric_name, str) or not self.primary_metric_name:
            wrong(
                "primary_metric_name",
                f"the name is {self.primary_metric_name!r}.",
                "Give the name that the script logs.",
            )
        try:
            PrimaryMetricGoal(self.primary_metric_goal)
        except ValueError:
            wrong(
                "primary_metric_goal",
                f"the goal is {self.primary_metric_goal!r}.",
                "Give PrimaryMetricGoal.MAXIMIZE or PrimaryMetricGoal.MINIMIZE.",
            )
        found += self._problems_of_limits()
        if isinstance(self.hyperparameter_sampling, BayesianParameterSampling) and not isinstance(
            self.policy, NoTerminationPolicy
        ):
            wrong(
                "policy",
                "Bayesian sampling takes no early termination policy.",
                "Remove the policy, or use RandomParameterSampling.",
            )
        if self.debug_flag is not None:
            wrong(
                "debug_flag", "a sweep has no debug mode.", "Omit it, and read the sweep's events."
            )
        run_id = self.custom_run_id
        if run_id is not None and not (isinstance(run_id, str) and RUN_ID.fullmatch(run_id)):
            wrong(
                "custom_run_id",
                f"the id is {run_id!r}.",
                "Give a letter or digit, then letters, digits, _ and -, 200 characters at most.",
            )
        found.extend(self._warm_start_problems())
        return found

    def _problems_of_limits(self) -> list[Problem]:
        found = []
        limits = {"max_total_runs": MAX_TOTAL}
        if self._concurrent_given:  # by default it is max_total_runs, which may be above 100
            limits["max_concurrent_runs"] = MAX_CONCURRENT
        for name, most in limits.items():
            value = getattr(self, name)
            if not is_whole(value, at_least=1) or value > most:
                remedy = f"Give a whole number of 1 … {most}."
                found.append(Problem(name, f"the value is {value!r}.", remedy))
        minutes = self.max_duration_minutes
        if not isinstance(minutes, int | float) or isinstance(minutes, bool) or not minutes > 0:
            what = f"the value is {minutes!r}."
            found.append(Problem("max_duration_minutes", what, "Give minutes above 0."))
        return found

    def _warm_start_problems(self) -> list[Problem]:
        found: list[Problem] = []
        for name, kind in (("resume_from", "HyperDriveRun"), ("resume_child_runs", "Run")):
            for run in getattr(self, name):
                if not isinstance(getattr(run, "id", run), str):
                    message = f"{run!r} is not a run."
                    found.append(Problem(name, message, f"Give each as a {kind}, or its id."))
        if len(self.resume_from) > MAX_PARENTS:
            found.append(
                Problem(
                    "resume_from",
                    f"{len(self.resume_from)} runs are given.",
                    f"Give at most {MAX_PARENTS}.",
                )
            )
        identities = [_id_of(run) for run in self.resume_child_runs]
        if len(set(identities)) != len(identities):
            found.append(
                Problem("resume_child_runs", "a run appears twice.", "Give each run once.")
            )
        total = self.max_total_runs
        if identities and isinstance(total, int) and len(identities) > total >= 1:
            found.append(
                Problem(
                    "resume_child_runs",
                    f"{len(identities)} runs are more than max_total_runs, {self.max_total_runs}.",
                    "Give fewer, or raise max_total_runs.",
                )
            )
        return found

    def _warn(self) -> None:
        advice = list(
            self.hyperparameter_sampling.advice(self.max_total_runs, self.max_concurrent_runs)
        )
        if self.max_duration_minutes > MAX_DURATION_MINUTES:
            advice.append(
                f"max_duration_minutes={self.max_duration_minutes:g} is more than a week; "
                f"{MAX_DURATION_MINUTES} is used."
            )
            self.max_duration_minutes = MAX_DURATION_MINUTES
        if self.max_concurrent_runs > self.max_total_runs:
            advice.append(
                f"max_concurrent_runs={self.max_concurrent_runs} is more than max_total_runs="
                f"{self.max_total_runs}; {self.max_total_runs} is used."
            )
            self.max_concurrent_runs = self.max_total_runs
        self.advice = tuple(advice)
        for sentence in self.advice:
            warnings.warn(sentence, UserWarning, stacklevel=3)


class HyperDriveRunConfig(HyperDriveConfig):
    """The older name, with the estimator first.

    Source: ``azureml.train.hyperdrive.HyperDriveRunConfig``.
    """

    def __init__(
        self,
        estimator: Any,
        hyperparameter_sampling: Sampling,
        primary_metric_name: str,
        primary_metric_goal: PrimaryMetricGoal,
        max_total_runs: int,
        max_concurrent_runs: int | None = None,
        max_duration_minutes: float = MAX_DURATION_MINUTES,
        policy: Policy | None = None,
        **options: Any,
    ) -> None:
        """Accept the parameters of `HyperDriveConfig`, in the order of this class."""
        super().__init__(
            hyperparameter_sampling,
            primary_metric_name,
            primary_metric_goal,
            max_total_runs,
            max_concurrent_runs,
            max_duration_minutes,
            policy,
            estimator=estimator,
            **options,
        )


def _listed(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _id_of(run: Any) -> str:
    return str(getattr(run, "id", run))


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)


register(HyperDriveConfig, "rayjobs.tuning.submitted:submit")
