"""Decides which steps reuse the results of an earlier run, and explains why others run again.

A step's *parts* are everything that determines its results. As far as rayjobs can tell, two steps
with equal parts have equal results, in any run. Inputs are compared by reference: a dataset's
version or definition, a path in a datastore, the job that produced an output; their bytes are not
read.
Packages are compared by their requirements, and by the versions that the newest job with the same
requirements got.

Source: Azure ML SDK v1, `allow_reuse` of steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rayjobs.data import made
from rayjobs.data.arguments import SAVED
from rayjobs.datastore.data_input import DataInput
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.spec.model import JobSpec

if TYPE_CHECKING:
    from rayjobs.datastore.catalogue import Catalogue
    from rayjobs.jobs.records import StepRow, StoredFile
    from rayjobs.pipelines.spec import StepSpec
    from rayjobs.workspace.folder import OpenWorkspace

FORMAT = 2
# All other fields of a job determine its results, including new fields that are not listed here.
NOT_COUNTED = frozenset(
    {
        # description and lookup
        "version",
        "notify",
        "name",
        "display_name",
        "tags",
        "strict",
        "substitutes",  # the other fields contain the effective values
        # where and when it runs, how often, and for how long
        "target",
        "resources",
        "priority",
        "preemptible",
        "cold",
        "retries",
        "max_duration_s",
        "grace_s",
        "stall_timeout_s",
        "log_cap_mib",
        "umask",
        "depends_on",
        "array",  # a step is never an array
        # compared by the digest of the files
        "source_directory",
    }
)
# Fields that `parts_of` adds one by one.
_BY_NAME = frozenset({"script", "command", "environment_variables", "inputs", "outputs"})
PACKAGES = "packages"  # the versions that were installed for `environment`; not a part
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Decision:
    """Why a step is reused or runs.

    Attributes:
        cause: The rest of a sentence that says whether it runs or is reused, see `reason`.
        original: The job whose results are reused; None: the step runs.
        compared_with: The job of the earlier step that it was compared with.
        differs: Names of the parts that differ from it.
    """

    cause: str
    original: str | None = None
    compared_with: str | None = None
    differs: tuple[str, ...] = ()

    @property
    def is_reused(self) -> bool:
        """Whether the results of an earlier job are reused."""
        return self.original is not None

    @property
    def reason(self) -> str:
        """One sentence, e.g. ``runs: reuse is off for this step`` or ``reused from digits_1``."""
        return f"reused {self.cause}" if self.is_reused else f"runs: {self.cause}"

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON data."""
        return {
            "reason": self.reason,
            "original": self.original,
            "compared_with": self.compared_with,
            "differs": list(self.differs),
        }


def parts_of(
    spec: JobSpec,
    step: StepSpec,
    snapshot: str | None,
    params: Mapping[str, Any],
    definition_of: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Return everything that determines a step's results, by name.

    Fields that only decide where and when it runs are excluded, see `NOT_COUNTED`.

    Args:
        spec: The step's job, with the final sources of its inputs.
        step: The step's definition.
        snapshot: Digest of its code, or of its `hash_paths`.
        params: The values of the step's `params`.
        definition_of: Returns the text to compare for the source of an input.
    """
    variables = {
        name: value
        for name, value in spec.environment_variables.items()
        if not name.startswith("AML_PARAMETER_")
    }
    parts: dict[str, Any] = {
        "format": FORMAT,
        "source": snapshot,
        "entry": {"script": spec.script, "command": spec.command},
        "environment_variables": variables,
        "params": {name: str(value) for name, value in params.items()},
        "version": step.reuse.version,
    }
    given = spec.model_dump(mode="json", exclude={*NOT_COUNTED, *_BY_NAME})
    if given["parallel_run"] is None:
        del given["parallel_run"]  # steps that were stored before it existed do not have it
    parts |= given
    if step.sweep is not None:
        parts["sweep"] = json.loads(json.dumps(dict(step.sweep.definition)))
    for name, one in spec.inputs.items():
        parts[f"inputs.{name}"] = {**_plain(one), "source": definition_of(one.source)}
    for name, output in spec.outputs.items():
        parts[f"outputs.{name}"] = _plain(output)
    return parts


def definition_of(catalogue: Catalogue, source: str) -> str:
    """Return the text to compare for an input: for an unregistered dataset, its definition.

    The definition consists of the dataset's sources and the names of its files. Their bytes are not
    compared, as for a path in a datastore.
    """
    if not source.startswith(SAVED):
        return source
    found = DataInput.from_json(json.loads(catalogue.manifest(source.removeprefix(SAVED))))
    paths = [entry.path for entry in found.manifest or ()]
    text = json.dumps([found.definition, paths, found.live and found.live.to_json()])
    return f"definition:{hashlib.sha256(text.encode()).hexdigest()}"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the digest of a step's parts."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def digest_of_paths(source: Path, paths: tuple[str, ...]) -> str:
    """Return the digest of the names and content of some files below a source directory.

    A folder means all files below it. A missing path also counts.
    """
    whole = hashlib.sha256()
    for one in sorted(paths):
        top = source / one
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for file in files:
            if file.is_dir():
                continue
            content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "-"
            whole.update(f"{file.relative_to(source).as_posix()}\0{content}\n".encode())
    return f"paths:{whole.hexdigest()}"


def differences(now: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the parts that differ."""
    names = [*now, *(name for name in then if name not in now)]
    return tuple(name for name in names if now.get(name) != then.get(name))


@dataclass
class Decisions:
    """Decides which steps of one run are reused.

    Args:
        workspace: The workspace with the earlier runs.
        pipeline: The pipeline's name.
        regenerate: Run every step, without reuse.
        resumed: Step → job of an earlier run whose results are reused, regardless of `allow`.
    """

    workspace: OpenWorkspace
    pipeline: str
    regenerate: bool = False
    resumed: Mapping[str, str] = field(default_factory=dict)
    _newest: dict[str, tuple[str, StoredFile] | None] = field(default_factory=dict)

    def of(
        self,
        name: str,
        step: StepSpec,
        parts: Mapping[str, Any],
        *,
        spec: JobSpec,
        outputs: tuple[str, ...],
        fresh: Mapping[str, str],
    ) -> Decision:
        """Return whether a step reuses the results of an earlier one.

        Args:
            name: Name of the step.
            step: Its definition.
            parts: Everything that determines its results.
            spec: Its job.
            outputs: Names of the outputs that must be unchanged.
            fresh: Input → step, for inputs from steps that run in this run.
        """
        store = self.workspace.store
        if name in self.resumed:
            original = self.resumed[name]
            wrong = made.damage(self.workspace, original, outputs)
            if wrong is None:
                return Decision(f"from {original}, of the run that is resumed", original)
            return Decision(f"{original} completed, but {wrong}")
        if self.regenerate:
            return Decision("the run regenerates all outputs")
        if not step.reuse.allow:
            return Decision("reuse is off for this step")
        damaged, outdated = "", None
        # An input that this run produces has a new source, so no earlier step can have read it.
        for one in () if fresh else store.reusable_steps(key_of(parts)):
            wrong = made.damage(self.workspace, one.job, outputs)
            if wrong is None and (others := self._other_packages(spec, one.job)):
                cause = f"{one.job} had other packages: {others}"
                outdated = outdated or Decision(cause, compared_with=one.job, differs=(PACKAGES,))
                continue
            if wrong is None:
                return Decision(f"from {one.job}", one.job)
            damaged = damaged or f"{one.job} did the same, but {wrong}"
        if outdated is not None:
            return outdated
        if damaged:
            return Decision(damaged)
        return compared(parts, store.earlier_step(self.pipeline, name), fresh=fresh)

    def _other_packages(self, spec: JobSpec, original: str) -> str:
        """Return how an earlier job's lock differs from the newest lock for the same requirements.

        Newer versions in the package index are unknown until a job is built with them.
        """
        if spec.environment is None or isinstance(spec.environment, str):
            return ""
        key = spec.model_dump_json(include={"environment", "container"})
        if key not in self._newest:
            self._newest[key] = self.workspace.store.newest_lock(spec)
        newest = self._newest[key]
        if newest is None or newest[0] == original:
            return ""
        changes = changed_packages(self.workspace, original, newest[0])
        if not changes:
            return ""
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        return f"{changes[0]}{more}, as {newest[0]} has them"


def changed_packages(workspace: OpenWorkspace, then: str, now: str) -> tuple[str, ...]:
    """Return the packages that differ between the environments of two jobs, one string each."""
    from rayjobs.environments import locks

    found: list[dict[tuple[str, str], str]] = []
    for job in (then, now):
        lock = locks.stored(workspace, job)
        if lock is None:
            return (f"the packages of {job} are not recorded",)
        found.append({(one.name, one.source): one.version for one in locks.packages(lock)})
    before, after = found
    return tuple(
        f"{name} {before.get((name, source), '(none)')} → {after.get((name, source), '(none)')}"
        for name, source in sorted({*before, *after})
        if before.get((name, source)) != after.get((name, source))
    )


def compared(
    parts: Mapping[str, Any], earlier: StepRow | None, *, fresh: Mapping[str, str] = _NOTHING
) -> Decision:
    """Return why a step runs, compared with the newest earlier step of the same name."""
    if earlier is None:
        return Decision("no earlier run of this step has completed")
    if earlier.reuse_key is None:
        return Decision(f"reuse was off for {earlier.job}", compared_with=earlier.job)
    differs = differences(parts, earlier.parts)
    own = [one for one in differs if one.removeprefix("inputs.") not in fresh]
    causes = [f"differs from {earlier.job} in {', '.join(own)}"] if own else []
    if fresh:
        producers = ", ".join(repr(one) for one in dict.fromkeys(fresh.values()))
        causes.append(f"reads new output of {producers} in this run")
    return Decision(
        " and ".join(causes) or "nothing differs",
        compared_with=earlier.job,
        differs=differs,
    )
