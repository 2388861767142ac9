"""SweepSpec: what a sweep tries, how it chooses and when it ends; validated, frozen, versioned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from rayjobs.core.errors import Problem
from rayjobs.core.text import counted
from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.policies import NoTerminationPolicy, Policy, parse_policy
from rayjobs.tuning.samplers import BayesianParameterSampling, Sampling, parse_sampling

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
RESULT = r"^[A-Za-z0-9_]+$"
BEST = "best:"
MAX_TOTAL = 1000
MAX_CONCURRENT = 100
MAX_PARENTS = 5  # sweeps of a warm start; Azure ML's limit, like the two above
MAX_DURATION_S = 10_080 * 60.0  # a week, Azure ML's limit


class _Nested(ValueError):
    """Carries problems with their own paths through pydantic."""

    def __init__(self, found: SweepError) -> None:
        super().__init__(str(found))
        self.problems = found.problems


def _sampling(given: object) -> Sampling:
    try:
        return parse_sampling(given)
    except SweepError as found:
        raise _Nested(found) from None


def _policy(given: object) -> Policy:
    try:
        return parse_policy(given)
    except SweepError as found:
        raise _Nested(found) from None


def _goal(given: object) -> PrimaryMetricGoal:
    try:
        return PrimaryMetricGoal(str(given))
    except ValueError:
        raise ValueError(f"the goal is {given!r}. Write maximize or minimize.") from None


def _as_dict(value: Sampling | Policy) -> dict[str, Any]:
    return value.to_dict()


class Limits(BaseModel):
    """The limits of a sweep.

    Attributes:
        total: The maximum number of trials; a grid ends earlier when it runs out of points.
        concurrent: Trials at a time; None means `total`.
        max_duration_s: Seconds for the whole sweep, from its start; afterwards its trials are
            stopped.
        max_failures: The number of failed trials that are tolerated; one more fails the sweep.
            None: any number; the sweep fails only if no trial completes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    total: Annotated[int, Field(ge=1, le=MAX_TOTAL)]
    concurrent: Annotated[int, Field(ge=1, le=MAX_CONCURRENT)] | None = None
    max_duration_s: Annotated[float, Field(gt=0, le=MAX_DURATION_S)] = MAX_DURATION_S
    max_failures: Annotated[int, Field(ge=0)] | None = None

    @property
    def at_a_time(self) -> int:
        """Trials at a time, as a number."""
        return min(self.concurrent or self.total, MAX_CONCURRENT)


_TEACHES_NOTHING = Problem(
    "policy",
    "Bayesian sampling takes no early termination policy, since a stopped trial teaches it "
    "nothing.",
    "Remove the policy, or use random sampling.",
)


class Result(BaseModel):
    """A result that is stored when the sweep has ended.

    Attributes:
        what: ``metrics`` (of all trials, as one JSON file), or ``best:PATH``: a file or folder of
            the best trial, such as ``best:outputs/model.pt``.
        destination: ``datastore/path``; it may contain ``{run-id}`` and ``{output-name}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: Annotated[str, Field(pattern=r"^(metrics|best:.+)$")]
    destination: Annotated[str, Field(pattern=r"^[^/]+/.+$")]


class SweepSpec(BaseModel):
    """One sweep.

    Attributes:
        version: Version of this format.
        name: Name of the sweep, and of the experiment of its trials.
        job: The base job; each trial is this job with its parameters among the arguments.
        sampling: How parameters are chosen; its seed is always recorded.
        policy: When a trial is stopped early; without one, never.
        metric: Name of the primary metric, as the script logs it.
        goal: Whether a higher or a lower value is better.
        limits: How many trials, and for how long.
        register_as: Name of the model under which the best trial's outputs are registered.
        model_path: The file or folder under ``outputs/`` that is registered.
        results: What is stored when the sweep has ended, by name.
        resume_from: At most 5 earlier sweeps of the same metric: their ended trials inform sampling
            and policy, and points that they completed are not tried again.
        resume_trials: Ended trials of earlier sweeps, by run id: the first trials of this sweep
            continue from their checkpoints, with their parameters and ``--resume-from``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=NAME)] = "sweep"
    job: Mapping[str, Any]
    sampling: Annotated[Sampling, PlainValidator(_sampling), PlainSerializer(_as_dict)]
    policy: Annotated[Policy, PlainValidator(_policy), PlainSerializer(_as_dict)] = Field(
        default_factory=NoTerminationPolicy
    )
    metric: Annotated[str, Field(min_length=1)]
    goal: Annotated[PrimaryMetricGoal, PlainValidator(_goal), PlainSerializer(str)]
    limits: Limits
    register_as: Annotated[str, Field(pattern=NAME)] | None = None
    model_path: Annotated[str, Field(min_length=1)] = "outputs"
    results: Mapping[Annotated[str, Field(pattern=RESULT)], Result] = Field(default_factory=dict)
    resume_from: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    resume_trials: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> SweepSpec:
        if isinstance(self.sampling, BayesianParameterSampling) and not isinstance(
            self.policy, NoTerminationPolicy
        ):
            raise _Nested(SweepError(problems=[_TEACHES_NOTHING]))
        return self

    @property
    def total(self) -> int:
        """The trials this sweep can have: its limit, or the size of a smaller grid."""
        size = self.sampling.size
        if size is None:
            return self.limits.total
        return min(size + len(self.resume_trials), self.limits.total)

    @property
    def advice(self) -> tuple[str, ...]:
        """Return warnings about allowed but unwise settings, one sentence each."""
        return self.sampling.advice(self.limits.total, self.limits.at_a_time)

    def to_json(self) -> str:
        """Return the spec as one JSON object that `parse_sweep` reads back."""
        return self.model_dump_json()


def parse_sweep(data: Mapping[str, Any], *, where: str = "") -> SweepSpec:
    """Return the sweep written in `data`.

    Args:
        where: The origin of `data` (such as a file's name), for the message.

    Raises:
        SweepError: lists everything wrong, each with its path and what to write instead.
    """
    try:
        return SweepSpec.model_validate(data)
    except ValidationError as exc:
        problems = readable(exc)
    # Pydantic checks whether parts fit together only once each of them is valid.
    if _TEACHES_NOTHING not in problems and _is_bayesian_with_policy(data):
        problems.append(_TEACHES_NOTHING)
    message = f"{where} has {counted(len(problems), 'problem')}" if where else ""
    raise SweepError(message, problems=problems)


def _is_bayesian_with_policy(data: Mapping[str, Any]) -> bool:
    """Return whether sampling and policy exclude each other, whatever else is right or wrong."""
    sampling, policy = data.get("sampling"), data.get("policy")
    try:
        stops = policy is not None and not isinstance(parse_policy(policy), NoTerminationPolicy)
    except SweepError:
        stops = True  # having no policy is always valid
    kind = sampling.get("type") if isinstance(sampling, Mapping) else sampling
    return stops and (isinstance(kind, BayesianParameterSampling) or kind == "bayesian")


def readable(exc: ValidationError) -> list[Problem]:
    """Return pydantic's errors as problems with a path and a remedy."""
    # Imported here: only errors need it.
    from rayjobs.tuning.remedies import problem_of

    found: list[Problem] = []
    for error in exc.errors():
        path = ".".join(str(part) for part in error["loc"])
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, _Nested):
            found += [
                Problem(".".join(p for p in (path, one.path) if p), one.message, one.remedy)
                for one in cause.problems
            ]
        else:
            found.append(problem_of(path, dict(error), _KNOWN))
    return found


# Section → its keys, for "did you mean".
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "": tuple(SweepSpec.model_fields),
    "limits": tuple(Limits.model_fields),
}
