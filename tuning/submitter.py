"""Submits a sweep: checks everything, packs once, writes one durable row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core.errors import Problem, RayjobsError, SpecError
from rayjobs.core.users import user_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import Sweep
from rayjobs.spec.file import build_spec
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import DRIVER, NewSweep
from rayjobs.submit import checks, copies, submitting
from rayjobs.tuning import warm_start
from rayjobs.tuning.errors import SweepError, SweepUsageError
from rayjobs.tuning.spec import SweepSpec

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


@dataclass(frozen=True)
class SubmittedSweep:
    """The result of a submit, see `rayjobs.submit.submitting.Submitted`."""

    sweep: Sweep
    created: bool
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    starting: bool = False
    packed: submitting.Packed | None = None


def base_job(given: Mapping[str, Any], name: str) -> JobSpec:
    """Return the job of each trial of a sweep, before its parameters are set.

    Args:
        given: The sweep's ``job``.
        name: The sweep's name, the default for the job.

    Raises:
        SweepError: it is not a job, or is a command, which takes no arguments; paths begin with
            ``job``.
    """
    try:
        data = dict(given)
        data.setdefault("name", name)
        job = build_spec(data)
    except SpecError as error:
        raise SweepError(problems=[_below_job(one) for one in error.problems]) from None
    if job.script is None:
        raise SweepError(
            problems=[
                Problem(
                    "job.command",
                    "a command takes no arguments, so parameters would never reach it.",
                    "Give job.script, which is run with each trial's parameters.",
                )
            ]
        )
    return job


def job_problems(given: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a sweep's ``job`` by itself, including its files.

    A sweep with other problems uses it, so that one error has all of them; `check_sweep` also asks
    the target and the workspace.
    """
    try:
        job = base_job(given, "sweep")
    except SweepError as error:
        return list(error.problems)
    source = None if job.source_directory is None else Path(job.source_directory).expanduser()
    return [_below_job(one) for one in checks.check(job, source=source)]


def check_sweep(workspace: OpenWorkspace, spec: SweepSpec) -> submitting.Checked:
    """Return the base job as it would be submitted; changes nothing.

    Raises:
        SweepError: the base job is wrong; all problems at once.
        CannotBePlacedError: the target can never run it.
    """
    job = base_job(spec.job, spec.name)
    try:
        return submitting.check(workspace, job)
    except SpecError as error:
        raise SweepError(problems=[_below_job(one) for one in error.problems]) from None


def submit_sweep(
    workspace: OpenWorkspace,
    spec: SweepSpec,
    *,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
    run_id: str | None = None,
    on_stage: Callable[[str], None] = lambda _text: None,
    wake: bool = True,
) -> SubmittedSweep:
    """Submit a sweep; it is never lost once this has returned.

    The source is packed once: all trials run the same snapshot, even if the source is edited
    meanwhile.

    Args:
        experiment: The experiment of the sweep and its trials; None takes the sweep's name.
        run_id: The sweep's id; None generates one.
        wake: Notify the target, and start it (in the background) if it is not running.

    Raises:
        SweepError: the sweep is wrong; all problems at once.
        CannotBePlacedError: the target can never run a trial.
        SnapshotError: the source directory cannot be packed.
        StoreError: it could not be written; nothing was submitted.
        SweepUsageError: the key was used for another sweep; nothing was submitted.
        UsageError: the id is another run's; nothing was submitted.
    """
    notes = copies.become_own(workspace)
    spec = warm_start.checked(workspace, spec)
    checked = check_sweep(workspace, spec)
    packed = submitting.pack_source(workspace, checked, on_stage=on_stage)
    warnings = [
        *notes,
        *spec.advice,
        *checked.warnings,
        *(packed.warnings if packed is not None else ()),
    ]
    warnings += submitting.hand_on_credentials(workspace, checked.spec)
    sweep, created = workspace.store.put_sweep(
        NewSweep(
            base=submitting.pack_start(workspace, checked.spec),
            definition=spec.model_dump(mode="json"),
            driver=DRIVER,
            experiment=experiment or spec.name,
            snapshot=None if packed is None else packed.digest,
            user=user_name(),
            properties={} if packed is None else packed.properties,
            name=spec.name,
            tags=tags or {},
            idempotency_key=idempotency_key,
            id=run_id,
        )
    )
    if not created:
        _check_same(sweep, spec, snapshot=None if packed is None else packed.digest)
    starting = False
    if wake and not sweep.job.state.is_final:
        try:
            starting = submitting.wake_or_start(workspace, sweep.job.target)
        except (RayjobsError, OSError) as error:
            warnings.append(
                f"the sweep is stored, but the target {sweep.job.target!r} could not be started: "
                f"{error}"
            )
    return SubmittedSweep(sweep, created, tuple(warnings), checked.notes, starting, packed)


def _check_same(known: Sweep, spec: SweepSpec, *, snapshot: str | None) -> None:
    """Refuse a sweep whose idempotency key belongs to a different one.

    A seed that was drawn instead of given differs each time the same file is read, and does not
    count.
    """
    stored, given = dict(known.spec), spec.model_dump(mode="json")
    if spec.sampling.draws_seed:
        stored["sampling"] = {**stored.get("sampling", {}), "seed": None}
        given["sampling"] = {**given["sampling"], "seed": None}
    different = sorted(
        name  # a sweep of an earlier version lacks fields that it did not use
        for name in {*stored, *given}
        if (stored.get(name) or None) != (given.get(name) or None)
    )
    if known.job.snapshot != snapshot:
        different.append("source files")
    if different:
        raise SweepUsageError(
            f"the idempotency key was used for sweep {known.job.id!r}, which differs in: "
            f"{', '.join(different)}. Use a new key for a new sweep, or repeat the first submit "
            f"unchanged.",
            job=known.job.id,
            different=tuple(different),
        )


def _below_job(one: Problem) -> Problem:
    return Problem(f"job.{one.path}" if one.path else "job", one.message, one.remedy)
