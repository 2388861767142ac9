"""The only way to submit: check, pack, write one durable row, wake the target; without Ray."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core import extras
from rayjobs.core.errors import (
    NotFoundError,
    Problem,
    RayjobsError,
    ServedElsewhereError,
    UsageError,
)
from rayjobs.core.paths import home as default_home
from rayjobs.core.users import user_name
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import INTERACTIVE, Job
from rayjobs.spec.model import DEFAULT_UMASK, JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import server_choice

if TYPE_CHECKING:
    from rayjobs.jobs.serving import Serving
    from rayjobs.policy.capacity import Capacity
    from rayjobs.snapshots import Summary
    from rayjobs.workspace.folder import OpenWorkspace

SNAPSHOT_CACHE = "cache"
OWN_CODE = Path(__file__).parents[1]  # components that come with rayjobs


@dataclass(frozen=True)
class Submitted:
    """The result of a submit.

    Attributes:
        job: The job as it was written.
        created: False if the idempotency key was known; `job` is then the first call's.
        warnings: Sentences that the submitter should read.
        notes: Automatic choices, such as processes that share CPUs.
        starting: Whether the target did not run and is now starting.
        packed: The packed code; None if nothing was packed or the job runs a stored snapshot.
    """

    job: Job
    created: bool
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    starting: bool = False
    packed: Packed | None = None


@dataclass(frozen=True)
class Packed:
    """A packed source directory.

    Attributes:
        source: The source directory.
        digest: The snapshot's digest.
        summary: Its size and what was left out.
        warnings: Sentences about it; also part of the submit's warnings.
        properties: Properties of the job that describe its repository.
    """

    source: Path
    digest: str
    summary: Summary
    warnings: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    """A valid spec, with notices for its submitter."""

    spec: JobSpec
    source: Path | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a job is entered into the store, apart from its spec.

    Attributes:
        idempotency_key: A second submit with the same key returns the job of the first.
        parent: The run that the job is a child of.
        is_numbered: The spec's name is a default: make it unique, such as ``train-3``.
    """

    idempotency_key: str | None = None
    parent: str | None = None
    is_numbered: bool = False


PLAIN_ENTRY = Entry()


def submit(
    workspace: OpenWorkspace,
    spec: JobSpec,
    *,
    source: Path | None = None,
    code_of: Job | None = None,
    experiment: str = "default",
    entry: Entry = PLAIN_ENTRY,
    on_stage: Callable[[str], None] = lambda _text: None,
    wake: bool = True,
) -> Submitted:
    """Submit a job; it is never lost once this has returned.

    A spec with `array` creates the array with all its members, or nothing; returns the array.

    Args:
        source: The source directory; None: the spec's; if that has none either, nothing is packed.
        code_of: A job whose snapshot and repository properties the new job gets, if it has a
            snapshot; nothing is packed then.
        entry: How the job is entered into the store.
        on_stage: Called with each stage of the submit, in words.
        wake: Notify the target, and start it in the background if it does not run.

    Raises:
        SpecError: the spec is wrong; all problems at once.
        NotFoundError: the snapshot of `code_of` was pruned.
        CannotBePlacedError: the target can never hold it.
        SnapshotError: the source directory cannot be packed.
        StoreError: the job could not be written; nothing was submitted.
        UsageError: an array has a parent, or the target's secrets file cannot be used.
        MissingPackageError: the target has to be started, and Ray is not installed here.
    """
    from rayjobs.snapshots import git
    from rayjobs.submit import copies

    if wake:
        refuse_without_ray(workspace, spec.target)
    warnings = copies.become_own(workspace)
    packed = None
    if code_of is None or code_of.snapshot is None:
        checked = check(workspace, spec, source=source)
        packed = pack_source(workspace, checked, on_stage=on_stage)
        on_stage("submitting the job")
        snapshot = None if packed is None else packed.digest
        properties = {} if packed is None else dict(packed.properties)
    else:
        bare = check(workspace, spec.model_copy(update={"source_directory": None}))
        named = bare.spec.model_copy(update={"source_directory": spec.source_directory})
        checked = replace(bare, spec=named)
        snapshot = code_of.snapshot
        check_snapshot(workspace, snapshot)
        properties = git.kept(code_of.properties)
    warnings += [*checked.warnings, *(packed.warnings if packed is not None else ())]
    warnings += hand_on_credentials(workspace, checked.spec)
    ready = with_umask(pack_start(workspace, checked.spec))
    if ready.array is not None and entry.parent is not None:
        raise UsageError("a child of a run is not an array: take `array` out of its job")
    new = NewJob(
        spec=ready,
        experiment=experiment,
        snapshot=snapshot,
        user=user_name(),
        idempotency_key=entry.idempotency_key,
        parent=entry.parent,
        properties=properties,
        numbered=entry.is_numbered,
    )
    enter = workspace.store.submit if ready.array is None else workspace.store.submit_array
    job, created = enter(new)
    starting = False
    notes = checked.notes
    if wake and not job.state.is_final:
        try:
            starting = wake_or_start(workspace, job.spec.target)
            if starting and (older := _older_jobs(job)):
                notes = (*notes, older)
        except ServedElsewhereError as error:
            warnings.append(f"the job is queued and waits: {error}")
        except (RayjobsError, OSError) as error:
            warnings.append(
                f"the job is queued, but the target {job.spec.target!r} could not be started: "
                f"{error}"
            )
    return Submitted(job, created, tuple(warnings), notes, starting, packed)


def hand_on_credentials(workspace: OpenWorkspace, spec: JobSpec) -> list[str]:
    """Pass a job's credentials that this shell exports to the target; return notes for users.

    The target outlives the shell that started it, and does not inherit its secrets.

    Raises:
        UsageError: the target's secrets file cannot be used.
    """
    if workspace.server is not None:
        return []  # a submit must not share one user's secrets with a team
    from rayjobs.submit import credentials
    from rayjobs.target import elsewhere

    needs = credentials.needs_of(workspace, spec)
    needs.optional |= credentials.own_needs(workspace)
    if not needs.names:
        return []
    at = default_home()
    serving = elsewhere.find_quietly(workspace.path, spec.target, home=at)
    if serving is None:
        return credentials.hand_on(needs, spec.target, home=at)
    if not needs.required:
        return []
    names = ", ".join(sorted(needs.required))
    return [
        f"the job reads {names}, which this shell does not pass on to {serving.claimant.host}. "
        f"Set each of them there: `rayjobs target secret set NAME --target {spec.target}`"
    ]


def resume(
    workspace: OpenWorkspace,
    job_id: str,
    *,
    changes: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    wake: bool = True,
) -> Submitted:
    """Submit a new job with the same code that continues from a job's newest whole checkpoint.

    A member of an array becomes an array of one. Its arguments do not change: the script finds the
    checkpoint with ``rayjobs.checkpoint.latest()``, or in ``RAYJOBS_RESUME_FROM``.

    Args:
        job_id: Any reference to the job.
        changes: Fields of the spec that differ, such as ``{"max_duration_s": 3600}``.

    Raises:
        NotFoundError: there is no such job, or its snapshot was pruned.
        UsageError: it has no whole checkpoint, has not ended yet, or is a sweep, an array, a
            pipeline run or an interactive run.
        SpecError: a change is wrong; all problems at once.
    """
    from rayjobs.results import checkpoints, resuming
    from rayjobs.spec.file import build_spec, merge

    job = workspace.store.find(job_id)
    if job.kind == "sweep":
        raise UsageError(f"{job.id} is a sweep, which runs nothing itself; resume one of its jobs")
    if job.kind == "array":
        raise UsageError(
            f"{job.id} is an array, which runs nothing itself; resume a member, such as "
            f"'{job.id}[{job.spec.array.expand()[0] if job.spec.array else 0}]'"
        )
    if job.kind == "pipeline":
        raise UsageError(
            f"{job.id} is a pipeline run, which runs nothing itself; `rayjobs pipeline resume "
            f"{job.id}` continues it"
        )
    if job.kind == INTERACTIVE:
        raise UsageError(
            f"{job.id} is an interactive run, which rayjobs did not start. Submit a script with "
            f"`--resume-from {job.id}`"
        )
    if not job.state.is_final:
        raise UsageError(
            f"{job.id} is {job.state}, and a retry of it resumes by itself. To resume in a new "
            f"job, end this one first (`rayjobs cancel {job.id}`)"
        )
    if checkpoints.newest(workspace.store, workspace.blobs, job.id) is None:
        raise UsageError(resuming.no_checkpoint(workspace.store, job.id))
    values = {**job.spec.model_dump(mode="json"), "resume_from": job.id, "depends_on": []}
    if job.array_index is not None and job.spec.array is not None:
        # Its script relies on index and count, so both stay as in the array.
        count = job.spec.array.count or len(job.spec.array.expand())
        values["array"] = {"indices": str(job.array_index), "limit": None, "count": count}
    spec = build_spec(merge(values, changes or {}))
    return submit(
        workspace,
        spec,
        experiment=job.experiment,
        code_of=job,
        entry=Entry(idempotency_key=idempotency_key, is_numbered=is_numbered(job)),
        wake=wake,
    )


def is_numbered(job: Job) -> bool:
    """Return whether the job's name comes from a default, as ``train-3`` from ``train``."""
    number = (job.display_name or "").removeprefix(f"{job.spec.name}-")
    return job.spec.display_name is None and number != job.display_name and number.isdecimal()


def check_snapshot(workspace: OpenWorkspace, digest: str) -> None:
    """Check that the workspace has a snapshot, and protect it from pruning for an hour.

    Raises:
        NotFoundError: it was pruned.
    """
    from rayjobs import snapshots

    if not workspace.blobs.exists(snapshots.blob_key(digest), quick=True):
        raise NotFoundError(
            f"the workspace no longer has snapshot {digest}: it was pruned with its job. Submit "
            f"the source directory again; `--resume-from JOB` continues from a job's checkpoint",
            snapshot=digest,
        )


def with_umask(spec: JobSpec) -> JobSpec:
    """Return a spec with the submitter's umask; a common umask is not recorded."""
    own = _own_umask()
    if spec.umask is not None or own == int(DEFAULT_UMASK, 8):
        return spec
    return spec.model_copy(update={"umask": f"{own & 0o777:03o}"})


def _own_umask() -> int:
    try:
        with open("/proc/self/status", "rb") as lines:
            return next(int(line[6:], 8) for line in lines if line.startswith(b"Umask:"))
    except (OSError, StopIteration):
        # Elsewhere the umask can only be read by setting it; the temporary value is strict.
        own = os.umask(0o077)
        os.umask(own)
        return own


def pack_start(workspace: OpenWorkspace, spec: JobSpec, *, stores: bool = True) -> JobSpec:
    """Return a checked spec in which local files are replaced by stored ones.

    Its initial checkpoint and this machine's packages are stored. With `stores` False, only their
    digests are computed.

    Raises:
        SpecError: the files cannot be read, or hold no whole checkpoint or package.
        SnapshotError: a package cannot be packed.
        StoreError: they cannot be stored.
    """
    from rayjobs.submit import local_packages

    spec = local_packages.pack(workspace, spec, stores=stores)
    if spec.resume_from is None:
        return spec
    from rayjobs.results import resuming

    return resuming.pack(workspace, spec, stores=stores)


def pack_source(
    workspace: OpenWorkspace,
    checked: Checked,
    *,
    on_stage: Callable[[str], None] = lambda _text: None,
    without: Collection[str] = (),
) -> Packed | None:
    """Store the source directory's snapshot and return it; None without a source directory.

    Args:
        workspace: Where it is stored.
        checked: The job.
        on_stage: Called with each stage.
        without: Paths of files to leave out: they describe the run and are not part of its code.

    Raises:
        SnapshotError: the source directory cannot be packed.
    """
    if checked.source is None:
        return None
    from rayjobs import snapshots
    from rayjobs.snapshots import git

    on_stage(f"packing {checked.source}")
    blobs = workspace.blobs
    cache = workspace.own_files / SNAPSHOT_CACHE
    # The git repository of rayjobs itself says nothing about the job.
    is_ours = checked.source.is_relative_to(OWN_CODE)
    last = git.LastLook(cache, checked.source)
    with contextlib.ExitStack() as stack:
        # Ask git while packing; not if an earlier result is probably valid, as git slows packing.
        look = (
            None if is_ours or last.is_known else stack.enter_context(git.GitLook(checked.source))
        )
        packed = snapshots.pack(
            checked.source,
            blobs_put=blobs.put_file,
            blobs_has=lambda key: blobs.exists(key, quick=True),
            cache=cache,
            entry=checked.spec.script,
            without=without,
        )
        facts = git.GitFacts() if is_ours else last.facts(packed.digest)
        if facts is None:
            patience_s = git.PATIENCE_S if look is not None else git.PATIENCE_CHANGED_S
            look = look or stack.enter_context(git.GitLook(checked.source))
            paths = frozenset(one.path for one in packed.manifest)
            facts = look.result(lambda: paths, patience_s=patience_s)
            last.keep(packed.digest, facts)
    properties = facts.properties(_keep_diff(workspace, facts.diff))
    summary = snapshots.Summary.of(packed)
    return Packed(checked.source, packed.digest, summary, tuple(packed.warnings), properties)


def _keep_diff(workspace: OpenWorkspace, diff: str) -> str | None:
    """Store a diff once, however often it is submitted; return its digest."""
    from rayjobs.datastore.digests import digest_of
    from rayjobs.datastore.errors import DatasetNotFound

    if not diff:
        return None
    content = diff.encode(errors="replace")
    try:
        workspace.store.catalogue.manifest(digest_of(content))
    except DatasetNotFound:
        return workspace.store.catalogue.put_manifest(content)
    return digest_of(content)


def check(
    workspace: OpenWorkspace,
    spec: JobSpec,
    *,
    source: Path | None = None,
    planned: Container[str] = (),
    known: TargetFacts | None = None,
) -> Checked:
    """Return the spec as it would be submitted; changes nothing (`--dry-run`).

    In the returned spec, dependencies have full ids, and datasets have versions.

    Args:
        source: The source directory; None: the spec's.
        planned: Jobs that do not exist yet but may appear in ``output:JOB/NAME``.
        known: The facts of the spec's target; None: they are looked up.

    Raises:
        SpecError: the spec is wrong; all problems at once.
        CannotBePlacedError: the target can never hold it.
    """
    from rayjobs.policy.capacity import pin_types, plan_shape
    from rayjobs.submit import checks
    from rayjobs.submit.project import LOCAL
    from rayjobs.submit.substituting import substituted

    if source is None and spec.source_directory is not None:
        source = Path(spec.source_directory).expanduser()
    problems: list[Problem] = []
    spec, unknown = _with_known_dependencies(workspace, spec)
    problems += unknown
    if spec.resume_from is not None:
        from rayjobs.results import resuming

        spec, wrong = resuming.check(workspace, spec)
        problems += wrong
    facts = known or facts_of(workspace, spec.target)
    serving, capacity = facts.serving, facts.capacity
    problems += facts.problems
    is_here = capacity is not None and capacity.shares_machine and workspace.server is None
    spec, replaced, not_replaced = substituted(spec, source=source, is_here=is_here)
    problems += not_replaced
    wrong = checks.check(spec, source=source)
    if spec.target == LOCAL and serving is None and workspace.server is None:
        wrong += checks.interpreter_here(spec)
        wrong += checks.image_here(spec)
    if spec.distribution.backend in ("mpi", "horovod-gloo"):
        from rayjobs.environments import mpi_checks

        wrong += mpi_checks.check(spec, source=source, is_here=is_here)
    unsure: list[str] = []
    if not any(one.path.startswith(("inputs", "outputs")) for one in wrong):
        from rayjobs.data import pins
        from rayjobs.submit import credentials

        spec, missing, unsure = pins.pin(workspace, spec, planned=planned)
        problems += missing
        # A server checks by itself which credentials its target has.
        is_asked = serving is None and workspace.server is None
        if is_asked and not any(one.path == "target" for one in problems):
            needs = credentials.needs_of(workspace, spec)
            if needs.required:
                problems += credentials.missing(needs, spec.target, home=default_home())
    problems += wrong
    checks.refuse(spec, problems, capacity)
    spec = spec if capacity is None else pin_types(spec, capacity)
    notes = (*replaced, *(plan_shape(spec, capacity).notes if capacity is not None else ()))
    if serving is not None and serving.is_live:
        notes = (*notes, serving.sentence)
    if source is None and spec.command is not None:
        unsure += _named_but_not_packed(spec.command)
    return Checked(spec, source, (*checks.warnings(spec), *unsure), notes)


def _named_but_not_packed(command: str) -> list[str]:
    """Warn about files of this folder in a command that has no source directory."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []  # shell syntax
    named = [one for one in words if not Path(one).is_absolute() and Path(one).is_file()]
    if not named:
        return []
    return [
        f"the command names {', '.join(named[:5])}, but no folder is packed with it, so the job "
        f"will not find {'it' if len(named) == 1 else 'them'}; add `--source .` (in a job file: "
        f"`source_directory`) to pack this folder"
    ]


def _with_known_dependencies(
    workspace: OpenWorkspace, spec: JobSpec
) -> tuple[JobSpec, list[Problem]]:
    problems, found = [], []
    for index, dependency in enumerate(spec.depends_on):
        try:
            job = workspace.store.find(dependency.job)
        except (NotFoundError, UsageError) as error:
            is_missing = isinstance(error, NotFoundError)
            path = f"depends_on[{index}].job"
            problems.append(Problem(path, f"{error}", is_missing=is_missing))
            continue
        found.append(dependency.model_copy(update={"job": job.id}))
    if problems or not found:
        return spec, problems
    return spec.model_copy(update={"depends_on": tuple(found)}), []


@dataclass(frozen=True)
class TargetFacts:
    """What a submit has to know about a target.

    Attributes:
        serving: The other machine that runs it; None: this machine runs it.
        capacity: Its capacity; None: unknown, since it runs elsewhere or was never reached.
        problems: Why no job can be submitted to it.
    """

    serving: Serving | None
    capacity: Capacity | None
    problems: tuple[Problem, ...] = ()


def facts_of(workspace: OpenWorkspace, target: str) -> TargetFacts:
    """Return what is currently known on this machine about a target."""
    from rayjobs.target import elsewhere
    from rayjobs.target.targets import capacity_of

    # Local facts say nothing about a target on another machine.
    serving = None
    at = default_home()
    if workspace.store_address is not None:  # machines share only such records
        serving = elsewhere.find_quietly(workspace.path, target, home=at)
    if serving is not None:
        return TargetFacts(serving, None)
    try:
        known = capacity_of(target, home=at)
    except (NotFoundError, UsageError) as error:
        is_missing = isinstance(error, NotFoundError)
        return TargetFacts(None, None, (Problem("target", str(error), is_missing=is_missing),))
    return TargetFacts(None, known if known.nodes else None)


def refuse_without_ray(workspace: OpenWorkspace, target: str) -> None:
    """Refuse to queue a job if this machine cannot start its target.

    Raises:
        MissingPackageError: the target does not run, and Ray is not installed here.
    """
    if workspace.server is not None or extras.has("ray"):
        return
    from rayjobs.target import starting

    try:
        if starting.wake(target, home=default_home(), workspace=workspace.path, registers=False):
            return
    except (RayjobsError, TimeoutError, OSError):
        return  # the wake after the submit reports the problem
    extras.require(f"target {target!r} does not run, and starting it", "ray")


def wake_or_start(workspace: OpenWorkspace, target: str) -> bool:
    """Notify the target of new work; start it in the background if it does not run.

    Returns at once; True if it is starting (`starting.ensure_target` follows the start).
    """
    if (server := workspace.server) is not None:
        query = {"start": "1"}
        path = f"/v1/targets/{target}/wake"
        return not server.ask("POST", path, bool, query=query, repeats=True)
    from rayjobs.target import revive, starting
    from rayjobs.target.stopping import TargetLocation

    at = default_home()
    try:
        # Raises if the target belongs to another machine and does not run there.
        if starting.wake(target, home=at, workspace=workspace.path):
            if starting.lost_its_keeper(TargetLocation(target, at)):
                revive.in_background(target, home=at, workspace=workspace.path)
            return False
    except TimeoutError:
        return False  # it is alive but busy; its poll finds the job
    revive.in_background(target, home=at, workspace=workspace.path)
    return True


def _older_jobs(job: Job) -> str:
    """Return a sentence about older jobs that start with the target, if it is not starting yet."""
    if server_choice.active() is not None:
        return ""
    from rayjobs.target import keeper_state, unfinished
    from rayjobs.target.stopping import TargetLocation

    if keeper_state.is_kept(TargetLocation(job.target, default_home()).paths):
        return ""  # the process that began the start prints this sentence
    return unfinished.older(job.target, home=default_home(), than=job.id)
