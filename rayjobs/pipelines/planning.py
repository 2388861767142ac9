"""Plans a run: from a pipeline's definition and a run's values to the rows to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayjobs.core import ids
from rayjobs.core.errors import CannotBePlacedError, NotFoundError, Problem, SpecError
from rayjobs.data.pins import unknown_variables
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.run_filter import STEP_OF
from rayjobs.pipelines.graph import DEFAULT_DESTINATION, Edge, Graph, looked_at
from rayjobs.pipelines.reuse import (
    Decision,
    Decisions,
    definition_of,
    digest_of_paths,
    key_of,
    parts_of,
)
from rayjobs.pipelines.spec import (
    STEP,
    PipelineError,
    PipelineSpec,
    StepSpec,
    chosen_values,
    outputs_of,
    parameters_in,
    step_sources,
    texts_in,
    variable_of,
    with_values,
)
from rayjobs.spec.file import build_spec
from rayjobs.spec.model import Dependency, JobSpec
from rayjobs.spec.problems import near
from rayjobs.spec.sources import OUTPUT, output_source
from rayjobs.store.requests import DRIVER, NewStep
from rayjobs.submit import checks, submitting

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace

# Keys of a step in addition to the fields of its job.
OWN_KEYS = frozenset({"after", "params", "reuse", "sweep", "title"})
STEP_TAG = "step"
PIPELINE_TAG = "pipeline"
# Fields of a job that may name local files, which are packed.
_PACKED_FIELDS = {"environment", "resume_from"}
# Fields of a job that its script cannot read.
_FOR_PEOPLE = frozenset({"name", "display_name", "tags", "notify"})
# Azure ML's names for a run's properties.
RUN_PROPERTY = STEP_OF
REUSED_PROPERTY = "azureml.isreused"
ORIGINAL_PROPERTY = "azureml.reusedrunid"


@dataclass(frozen=True)
class PlannedStep:
    """A step of one run.

    Attributes:
        name: Its key in the pipeline.
        definition: Its definition in the pipeline.
        job_id: The future id of its job.
        spec: The job to run.
        snapshot: Digest of its code, or None.
        decision: Whether it is reused, and why.
        parts: Everything that determines its results.
        sweep: The definition of its sweep, if it is one.
    """

    name: str
    definition: StepSpec
    job_id: str
    spec: JobSpec
    snapshot: str | None
    decision: Decision
    parts: Mapping[str, Any]
    sweep: Mapping[str, Any] | None = None

    @property
    def made_by(self) -> str:
        """The job whose outputs are the step's: its own, or the reused one."""
        return self.decision.original or self.job_id


@dataclass(frozen=True)
class PlannedRun:
    """A planned run of a pipeline.

    Attributes:
        id: Its future id.
        spec: The definition, with the digests of packed code.
        graph: Its graph.
        values: The value of each parameter.
        steps: Its steps, in the order of the pipeline.
        warnings: Warnings for the submitter, one sentence each.
        notes: Information for the submitter, one sentence each.
    """

    id: str
    spec: PipelineSpec
    graph: Graph
    values: Mapping[str, Any]
    steps: tuple[PlannedStep, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reused(self) -> tuple[PlannedStep, ...]:
        """The steps that reuse earlier results."""
        return tuple(one for one in self.steps if one.decision.original is not None)


@dataclass
class Packer:
    """Packs each source directory once; a definition that is already packed keeps its code.

    Args:
        workspace: Where snapshots are stored.
        stores: Whether to store them; otherwise, only their digests are computed.
        on_stage: Called with each stage.
        file: The pipeline's own file, which is not part of the code of its steps.
    """

    workspace: OpenWorkspace
    stores: bool = True
    on_stage: Callable[[str], None] = lambda _text: None
    file: Path | None = None
    warnings: list[str] = field(default_factory=list)
    _packed: dict[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    _starts: dict[str, JobSpec] = field(default_factory=dict)

    def start(self, spec: JobSpec) -> JobSpec:
        """Return a step's job as `submitting.submit` would write it, with its packages packed.

        Raises:
            SpecError: the packages or the checkpoint cannot be packed.
            SnapshotError: a package cannot be packed.
        """
        key = spec.model_dump_json(include=_PACKED_FIELDS)
        if key not in self._starts:
            self._starts[key] = submitting.pack_start(self.workspace, spec, stores=self.stores)
        found = {name: getattr(self._starts[key], name) for name in _PACKED_FIELDS}
        return submitting.with_umask(spec.model_copy(update=found))

    def pack(self, checked: submitting.Checked) -> tuple[str | None, Mapping[str, str]]:
        """Return the digest of a step's code, and the facts about it.

        Raises:
            SnapshotError: the source directory cannot be packed.
        """
        if checked.source is None:
            return None, {}
        folder = str(checked.source)
        if folder not in self._packed:
            if self.stores:
                packed = submitting.pack_source(
                    self.workspace,
                    checked,
                    on_stage=self.on_stage,
                    without=self._without(checked.source),
                )
                assert packed is not None
                self.warnings += packed.warnings
                self._packed[folder] = packed.digest, packed.properties
            else:
                self._packed[folder] = self._digest(checked), {}
        return self._packed[folder]

    def _digest(self, checked: submitting.Checked) -> str:
        """Return the digest of a snapshot without storing it."""
        from rayjobs import snapshots

        assert checked.source is not None
        packed = snapshots.pack(
            checked.source,
            blobs_put=lambda *_given, **_more: None,
            blobs_has=lambda _key: True,
            cache=self.workspace.own_files / submitting.SNAPSHOT_CACHE,
            entry=checked.spec.script,
            without=self._without(checked.source),
        )
        self.warnings += packed.warnings
        return packed.digest

    def _without(self, source: Path) -> tuple[str, ...]:
        if self.file is None:
            return ()
        root, file = (Path(os.path.realpath(one)) for one in (source, self.file))
        return (file.relative_to(root).as_posix(),) if file.is_relative_to(root) else ()


def plan(
    workspace: OpenWorkspace,
    spec: PipelineSpec,
    *,
    experiment: str,
    values: Mapping[str, Any] | None = None,
    regenerate: bool = False,
    resumed: Mapping[str, str] | None = None,
    packer: Packer | None = None,
) -> PlannedRun:
    """Check a pipeline and decide which steps are reused, without submitting it.

    Args:
        workspace: Its workspace.
        spec: The pipeline.
        experiment: The experiment of the run.
        values: Values of parameters.
        regenerate: Run every step, without reuse.
        resumed: Step → job of an earlier run whose results are reused.
        packer: Packs the code; None means a packer that also stores it.

    Raises:
        PipelineError: something is wrong with it; lists all problems.
        CannotBePlacedError: a target can never run a step.
        SnapshotError: a source directory cannot be packed.
    """
    order, edges, wrong = looked_at(spec)
    graph = Graph(order, edges)
    chosen = chosen_values(spec, values or {})
    packer = packer or Packer(workspace)
    packer.file = _own_file(spec, chosen)
    run_id = ids.job_id(experiment)
    maker = _Maker(
        workspace=workspace,
        spec=spec,
        graph=graph,
        values=chosen,
        packer=packer,
        decisions=Decisions(workspace, spec.name, regenerate, resumed or {}),
        run_id=run_id,
        ids=_fresh_ids(experiment, spec.steps),
        problems=wrong,
    )
    made = maker.make()
    steps = {
        one.name: one.definition.model_copy(
            update={
                "snapshot": one.snapshot,
                "facts": maker.facts[one.name],
                "hashed": maker.hashed[one.name],
            }
        )
        for one in made
    }
    return PlannedRun(
        id=run_id,
        spec=spec.model_copy(update={"steps": steps}),
        graph=graph,
        values=chosen,
        steps=tuple(made),
        warnings=tuple(dict.fromkeys([*packer.warnings, *maker.warnings])),
        notes=tuple(dict.fromkeys(maker.notes)),
    )


def _own_file(spec: PipelineSpec, values: Mapping[str, Any]) -> Path | None:
    """Return the pipeline's file; None if there is none, or if a step names it and may read it.

    Args:
        spec: The pipeline.
        values: The value of each parameter, through which a step may name the file.
    """
    if spec.file is None:
        return None
    name = Path(spec.file).name
    for step in spec.steps.values():
        read = {key: one for key, one in step.job.items() if key not in _FOR_PEOPLE}
        sweep = step.sweep.definition if step.sweep is not None else {}
        given = with_values([read, dict(step.params), dict(sweep)], values)
        if any(name in text for _, text in texts_in(given)):
            return None
    return Path(spec.file)


def packed(workspace: OpenWorkspace, spec: PipelineSpec) -> PipelineSpec:
    """Return a checked pipeline whose code is packed and stored.

    Raises:
        PipelineError, CannotBePlacedError, SnapshotError: see `plan`.
    """
    open_ones = {name for name, one in spec.parameters.items() if one.default is None}
    if not open_ones:
        return plan(workspace, spec, experiment="publish", regenerate=True).spec
    raise PipelineError(
        problems=[
            Problem(f"parameters.{name}", "has no default.", "A published pipeline needs one.")
            for name in sorted(open_ones)
        ]
    )


def new_step(number: int, one: PlannedStep, run: PlannedRun) -> NewStep:
    """Return the row of a planned step."""
    properties = {RUN_PROPERTY: run.id, **one.definition.facts}
    properties |= run.spec.steps[one.name].facts
    if one.decision.original is not None:
        properties |= {REUSED_PROPERTY: "true", ORIGINAL_PROPERTY: one.decision.original}
    return NewStep(
        number=number,
        name=one.name,
        job=one.job_id,
        spec=one.spec,
        snapshot=one.snapshot,
        after=run.graph.before(one.name),
        reuse_key=key_of(one.parts) if one.definition.reuse.allow else None,
        parts=one.parts,
        original=one.decision.original,
        decision=one.decision.to_json(),
        properties=properties,
        driver=DRIVER if one.sweep is not None and one.decision.original is None else None,
        sweep=one.sweep,
    )


@dataclass
class _Maker:
    """Makes the steps of one run in topological order."""

    workspace: OpenWorkspace
    spec: PipelineSpec
    graph: Graph
    values: Mapping[str, Any]
    packer: Packer
    decisions: Decisions
    run_id: str
    ids: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    hashed: dict[str, str | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _unplaced: list[Problem] = field(default_factory=list)
    _checked: dict[str, submitting.Checked] = field(default_factory=dict)
    _snapshots: set[str] = field(default_factory=set)

    def make(self) -> list[PlannedStep]:
        into: dict[str, list[Edge]] = {}
        for edge in self.graph.edges:
            into.setdefault(edge.after, []).append(edge)
        checked: dict[str, submitting.Checked] = {}
        params: dict[str, dict[str, Any]] = {}
        for name in self.graph.order or self.spec.steps:
            step = self.spec.steps[name]
            params[name] = with_values(dict(step.params), self.values)
            found = self._check(name, step, params[name])
            if found is not None:
                checked[name] = found
        if self.problems:
            raise PipelineError(problems=[*self.problems, *self._unplaced])
        if self._unplaced:
            headline = "the pipeline has steps that can never be placed"
            raise CannotBePlacedError(headline, problems=self._unplaced)
        for name, one in checked.items():
            try:
                checked[name] = replace(one, spec=self.packer.start(one.spec))
            except SpecError as error:
                self.problems += [below(name, problem) for problem in error.problems]
        if self.problems:
            raise PipelineError(problems=self.problems)
        done: dict[str, PlannedStep] = {}
        for name in self.graph.order:
            done[name] = self._decide(name, checked[name], params[name], into.get(name, []), done)
        return [done[name] for name in self.spec.steps]

    def _check(
        self, name: str, step: StepSpec, params: Mapping[str, Any]
    ) -> submitting.Checked | None:
        """Return a step's job, ready to submit; None if it has problems, which are recorded."""
        values = with_values(dict(step.job), self.values)
        values.setdefault("name", name)
        values["environment_variables"] = {
            **(values.get("environment_variables") or {}),
            **{variable_of(one): str(value) for one, value in params.items()},
        }
        values["outputs"] = _outputs_with_places(values.get("outputs") or {})
        values["inputs"] = {
            key: self._renamed(one) for key, one in (values.get("inputs") or {}).items()
        }
        if values.get("depends_on"):
            self.problems.append(
                Problem(f"steps.{name}.depends_on", "is not for steps.", "Use `after`.")
            )
            return None
        if step.snapshot is not None:
            values = {key: one for key, one in values.items() if key != "source_directory"}
        try:
            job = readable(values)
            if job.array is not None:
                raise SpecError(
                    problems=[Problem("array", "a step cannot be an array.", "Remove it.")]
                )
            if step.sweep is not None:
                self._check_sweep(name, step, job)
            checked = self._checked_like(job)
        except CannotBePlacedError as error:
            self._unplaced += [below(name, one) for one in error.problems]
            return None
        except SpecError as error:
            files = file_problems(values) if step.snapshot is None else []
            wrong = [_with_parameters(step.job, one) for one in error.problems]
            found = [below(name, one) for one in [*wrong, *files]]
            self.problems += {str(one): one for one in found}.values()
            return None
        self.warnings += [f"step {name}: {one}" for one in checked.warnings]
        self.notes += checked.notes
        if step.snapshot is not None and step.snapshot not in self._snapshots:
            submitting.check_snapshot(self.workspace, step.snapshot)
            self._snapshots.add(step.snapshot)
        return checked

    def _checked_like(self, job: JobSpec) -> submitting.Checked:
        """Return `submitting.check` of a job; checks that similar jobs share run once.

        Raises:
            SpecError, CannotBePlacedError: see `submitting.check`.
        """
        key = _skeleton(job)
        known = self._checked.get(key)
        if known is None:
            found = submitting.check(self.workspace, job, planned=self._planned)
            self._checked[key] = found
            return found
        # The other job has the same files and target, but other arguments, variables or names.
        problems = [*checks.check(job), *unknown_variables(job)]
        if problems:
            raise SpecError(problems=problems)
        inputs = {name: known.spec.inputs[name] for name in job.inputs}
        own = {
            name: one if one.source.startswith(OUTPUT) else inputs[name]
            for name, one in job.inputs.items()
        }
        spec = job.model_copy(update={"inputs": own, "resources": known.spec.resources})
        return replace(known, spec=spec, warnings=tuple(checks.warnings(spec)))

    @cached_property
    def _planned(self) -> frozenset[str]:
        return frozenset(self.ids.values())

    def _check_sweep(self, name: str, step: StepSpec, job: JobSpec) -> None:
        from rayjobs.tuning.spec import parse_sweep

        assert step.sweep is not None
        definition = with_values(dict(step.sweep.definition), self.values)
        parse_sweep({**definition, "job": job.model_dump(mode="json")}, where=f"steps.{name}")

    def _renamed(self, one: Any) -> Any:
        """Return an input whose source names the future job of a step instead of the step."""
        if isinstance(one, str):
            one = {"source": one}
        source = one.get("source") if isinstance(one, Mapping) else None
        if not isinstance(source, str) or not source.startswith(STEP):
            return one
        producer, _, output = source.removeprefix(STEP).partition("/")
        # An unknown step is refused with the graph; until then, any id will do.
        made_by = self.ids.get(producer) or next(iter(self.ids.values()))
        return {**one, "source": output_source(made_by, output or "output")}

    def _decide(
        self,
        name: str,
        checked: submitting.Checked,
        params: Mapping[str, Any],
        into: Iterable[Edge],
        done: Mapping[str, PlannedStep],
    ) -> PlannedStep:
        step = self.spec.steps[name]
        spec = checked.spec
        inputs = dict(spec.inputs)
        fresh: dict[str, str] = {}
        for given, producer, output in step_sources(step):
            source = output_source(done[producer].made_by, output)
            inputs[given] = inputs[given].model_copy(update={"source": source})
            if done[producer].decision.original is None:
                fresh[given] = producer
        waits = dict.fromkeys(done[edge.before].job_id for edge in into)
        spec = spec.model_copy(update={"inputs": inputs})
        snapshot, facts = self._code(step, checked)
        self.facts[name] = facts
        hashed = step.hashed
        if step.reuse.hash_paths and checked.source is not None:
            hashed = digest_of_paths(Path(checked.source), step.reuse.hash_paths)
        self.hashed[name] = hashed
        counted = hashed or snapshot
        parts = parts_of(spec, step, counted, params, self._definition_of)
        sweep = None
        if step.sweep is not None:
            definition = with_values(dict(step.sweep.definition), self.values)
            sweep = self._sweep(name, definition, spec)
            parts["sweep"] = definition
        decision = self.decisions.of(
            name, step, parts, spec=spec, outputs=tuple(outputs_of(step)), fresh=fresh
        )
        spec = spec.model_copy(
            update={
                "depends_on": tuple(Dependency(job=one) for one in waits),
                "display_name": spec.display_name or step.title or name,
                "tags": {**spec.tags, PIPELINE_TAG: self.run_id, STEP_TAG: name},
            }
        )
        return PlannedStep(name, step, self.ids[name], spec, snapshot, decision, parts, sweep)

    @cached_property
    def _definition_of(self) -> Callable[[str], str]:
        return cache(partial(definition_of, self.workspace.catalogue))

    def _sweep(self, name: str, definition: dict[str, Any], spec: JobSpec) -> Mapping[str, Any]:
        from rayjobs.tuning.spec import parse_sweep

        job = spec.model_dump(mode="json")
        whole = parse_sweep({"name": name, **definition, "job": job}, where=f"steps.{name}")
        return whole.model_dump(mode="json")

    def _code(
        self, step: StepSpec, checked: submitting.Checked
    ) -> tuple[str | None, Mapping[str, str]]:
        if step.snapshot is not None:
            return step.snapshot, step.facts
        return self.packer.pack(replace(checked))


def _skeleton(job: JobSpec) -> str:
    """Return all parts of a job that are checked against files, storage and target, as text."""
    own = {"name", "display_name", "arguments", "tags", "environment_variables", "inputs"}
    inputs = [
        (name, OUTPUT if one.source.startswith(OUTPUT) else one.source, one.mode)
        for name, one in job.inputs.items()
    ]
    return f"{job.model_dump_json(exclude=own)}{inputs}"


def _outputs_with_places(outputs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in outputs.items():
        given = {"destination": one} if isinstance(one, str) else one or {}
        if isinstance(given, Mapping):  # otherwise, the job is refused
            given = {**given, "destination": given.get("destination") or DEFAULT_DESTINATION}
        found[name] = given
    return found


def below(step: str, one: Problem) -> Problem:
    """Return a problem of a step's job with its path in the pipeline."""
    meant = near(one.path, sorted(OWN_KEYS)) if one.is_unknown_key else ""
    path = f"steps.{step}.{one.path}" if one.path else f"steps.{step}"
    return replace(one, path=path, remedy=meant or one.remedy)


def _with_parameters(job: Mapping[str, Any], one: Problem) -> Problem:
    """Return a problem of a step's job that also names the parameters that set the field."""
    texts = [text for at, text in texts_in(job) if ".".join(map(str, at)) == one.path]
    named = [f"The parameter {name!r} sets it." for name in parameters_in(texts)]
    return replace(one, remedy=" ".join([*([one.remedy] if one.remedy else []), *named]))


def file_problems(job: Mapping[str, Any]) -> list[Problem]:
    """Find the problems of a step's script, independently of other problems of its job."""
    script, source = job.get("script"), job.get("source_directory")
    if not isinstance(script, str) or not isinstance(source, str) or "${{" in f"{source}{script}":
        return []
    return [*checks.entry_problems(JobSpec(script=script or "-"), Path(source).expanduser())]


def readable(job: Mapping[str, Any]) -> JobSpec:
    """Return a step's job as `build_spec` does; a missing file is one problem among others.

    Raises:
        SpecError: something is wrong with it; lists all problems.
    """
    try:
        return build_spec(job)
    except NotFoundError as error:
        missing = Problem("environment", f"{error.message}.", is_missing=True)
        raise SpecError(problems=[missing]) from None


def _fresh_ids(experiment: str, names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        new = ids.job_id(experiment)
        while new in taken:
            new = ids.job_id(experiment)
        taken.add(new)
        found[name] = new
    return found
