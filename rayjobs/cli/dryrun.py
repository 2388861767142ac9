"""`submit --dry-run`: the spec, the plan and what the job would wait for. Starts nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rayjobs import snapshots
from rayjobs.cli.output import facts
from rayjobs.cli.settings import Settings
from rayjobs.cli.startviews import start_lines
from rayjobs.core.paths import home
from rayjobs.core.text import counted, duration_text, size_text, verb
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.policy import NodeCapacity, Shape, describe_free, take
from rayjobs.policy.capacity import plan_shape
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import check
from rayjobs.target.node_settings import node_root
from rayjobs.target.targets import TargetView, capacity_of, target_status
from rayjobs.workspace.folder import OpenWorkspace, WorkspaceFiles, locate, open_workspace

# Made for each attempt, or added by its nodes.
UNKNOWN = (
    *("socket", "marker", "injob_path"),
    *("lease_s", "lease_since_s", "raylet", "soft_files", "containment", "hold", "views"),
)
NO_ID = "JOB"  # placeholder for the job's id in a plan


def dry_run(settings: Settings, spec: JobSpec, *, experiment: str) -> dict[str, Any]:
    """Return what a submit would do, as JSON data.

    Raises:
        SpecError: the spec is wrong; all problems at once.
        CannotBePlacedError: it never fits on the target.
    """
    with ExitStack() as stack:
        workspace = _workspace(settings, stack)
        checked = check(workspace, spec)
        waits = _dependencies(workspace, checked.spec)
    surveyed = None
    if checked.source is not None:
        surveyed = snapshots.survey(checked.source, entry=checked.spec.script)
    view = target_status(spec.target, ask=True)
    placed = plan_shape(checked.spec, capacity_of(spec.target))
    waits += _waits(view, Shape.from_dict(placed.shape))
    return {
        "valid": True,
        "experiment": experiment,
        "spec": checked.spec.model_dump(mode="json"),
        "source": None if checked.source is None else str(checked.source),
        "snapshot": None if surveyed is None else snapshots.Summary.of(surveyed).to_dict(),
        "workspace": str(locate(settings.workspace)),
        "plan": {
            "target": spec.target,
            "target_state": view.state,
            "shape": dict(placed.shape),
            "strategy": placed.strategy,
            "notes": [*placed.notes, *_array_notes(checked.spec)],
            "hosts": _hosts(checked.spec, experiment),
        },
        "would_wait": bool(waits),
        "waits_for": waits,
        "warnings": [*checked.warnings, *(surveyed.warnings if surveyed is not None else ())],
    }


def plan_text(plan: dict[str, Any]) -> str:
    """Return a dry run as text."""
    spec, placed, packed = plan["spec"], plan["plan"], plan["snapshot"] or {}
    shape = placed["shape"]
    what = spec["command"] or shlex.join([spec["script"], *spec["arguments"]])
    each = counted(shape["cpus"], "CPU")
    if shape["gpus"]:
        each += f", {counted(shape['gpus'], 'GPU')}"
    if shape["memory"]:
        each += f", {size_text(shape['memory'])}"
    limit = spec["max_duration_s"]
    lines = [
        ("Job", f"{spec['name']} (experiment {plan['experiment']})"),
        ("Runs", what),
        ("Source", plan["source"] or "none: nothing is packed"),
        ("Snapshot", packed.get("text", "")),
        ("Left out", packed.get("left_out_text", "")),
        ("Environment", JobSpec.model_validate(spec).environment_text),
        ("Image", JobSpec.model_validate(spec).container_text),
        *[("Substitute", str(one)) for one in JobSpec.model_validate(spec).substitutes],
        ("Target", f"{placed['target']} ({placed['target_state']})"),
        ("Place", f"{counted(shape['nodes'], 'node')} with {each}"),
        ("Processes", str(sum(len(host["ranks"]) for host in placed["hosts"]))),
        *start_lines(spec, placed["hosts"]),
        *[
            (f"Input {name}", f"{one['source']} ({one['mode']})")
            for name, one in spec["inputs"].items()
        ],
        *[(f"Output {name}", one["destination"]) for name, one in spec["outputs"].items()],
        ("At most", duration_text(limit, exact=True) if limit else "no limit"),
        ("Workspace", plan["workspace"]),
    ]
    lines += [("Note", note) for note in placed["notes"]]
    lines += [("Warning", warning) for warning in plan["warnings"]]
    lines += [("Waits for", reason) for reason in plan["waits_for"]]
    if not plan["waits_for"]:
        lines.append(("Waits for", "nothing"))
    return facts(lines)


def _array_notes(spec: JobSpec) -> list[str]:
    if spec.array is None:
        return []
    members = spec.array.expand()
    limit = f", {spec.array.limit} at a time" if spec.array.limit is not None else ""
    return [
        f"an array of {len(members)} such jobs, [{members[0]}] to [{members[-1]}]{limit}; "
        f"this is the plan of [{members[0]}]"
    ]


def _workspace(settings: Settings, stack: ExitStack) -> OpenWorkspace:
    """Open the existing workspace, or an empty one in memory."""
    path = locate(settings.workspace)
    if WorkspaceFiles(path).record.exists():
        return stack.enter_context(open_workspace(path, create=False))
    from rayjobs.store.sql import SqlStore
    from rayjobs.workspace.blobs import FolderBlobs

    # In a temporary folder: looking for data creates the default datastore's folder.
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="rayjobs-")))
    empty = OpenWorkspace(
        path=folder, id="", name="", store=SqlStore(":memory:"), blobs=FolderBlobs(folder / "blobs")
    )
    return stack.enter_context(empty)


def _dependencies(workspace: OpenWorkspace, spec: JobSpec) -> list[str]:
    waits = []
    for dependency in spec.depends_on:
        job = workspace.store.job(dependency.job)
        if not job.state.is_final:
            waits.append(f"{job.id} ({job.state})")
        elif dependency.when == "ok" and job.state is not JobState.COMPLETED:
            waits.append(f"{job.id}, which ended as {job.state}: the job would be canceled")
    return waits


def _waits(view: TargetView, shape: Shape) -> list[str]:
    if view.state != "running":
        return [f"the start of target {view.name!r} ({view.state})"]
    waits = []
    ahead = 0 if view.detail is None else len(view.detail.waiting)
    if ahead:
        waits.append(f"{counted(ahead, 'job')} that {verb(ahead, 'waits', 'wait')} already")
    capacities = [
        NodeCapacity(
            node.node_id,
            node.cpus,
            node.gpus,
            node.memory,
            node.free_cpus,
            node.free_gpus,
            node.free_memory,
            node.node_type,
        )
        for node in (() if view.detail is None else view.detail.nodes)
    ]
    if capacities and take(capacities, shape) is None and not _is_idle(view, shape):
        waits.append(f"capacity for {shape.describe()}: {describe_free(capacities)}")
    return waits


def _is_idle(view: TargetView, shape: Shape) -> bool:
    """Whether an idle allocation of this shape can be reused."""
    return any(
        held.job is None and not held.draining and Shape.from_dict(held.shape.to_json()) == shape
        for held in (() if view.detail is None else view.detail.allocations)
    )


def _hosts(spec: JobSpec, experiment: str) -> list[dict[str, Any]]:
    """Return the launch plan that each node's attempt host would get."""
    now = datetime.now(UTC)
    job = Job(
        id=NO_ID,
        serial=0,
        experiment=experiment,
        spec=spec,
        state=JobState.QUEUED,
        attempt=1,
        submitted_at=now,
        changed_at=now,
        parent=NO_ID if spec.array is not None else None,
        array_index=spec.array.expand()[0] if spec.array is not None else None,
    )
    nodes = range(spec.distribution.nodes)
    context = AttemptContext(
        job=job,
        attempt=1,
        nodes=tuple(PlannedNode(node, str(node), "", node_root(home())) for node in nodes),
        markers=tuple("-" for _ in nodes),
        workspace_name="",
        workspace_path="",
    )
    with _sockets_elsewhere():
        plans = [plan.to_json() for plan in launcher_for(spec).plans(context)]
    for plan in plans:
        for key in UNKNOWN:
            plan.pop(key)
        extras = plan.get("extras") or {}
        for part in (extras, *extras.get("peers", ())):
            part.pop("socket", None)
    return plans


@contextmanager
def _sockets_elsewhere() -> Iterator[None]:
    """Use a temporary folder for sockets, since making a plan creates the folder that it names."""
    name = "RAYJOBS_RUNTIME_BASE"
    before = os.environ.get(name)
    with TemporaryDirectory(prefix="rayjobs-") as folder:
        os.environ[name] = str(Path(folder))
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
