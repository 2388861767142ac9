"""The launch requests of an attempt, one per node, made from its spec and its allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rayjobs.core import ids
from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.engine.attempt.allocation import AttemptAllocation
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.engine.attempt.record import AttemptRecord
from rayjobs.engine.board import Served
from rayjobs.injob.identity import boot_id
from rayjobs.injob.plan import LaunchPlan
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, AzureIdentity, PlannedNode, with_azureml
from rayjobs.protocol.attempts import (
    AttemptOnNode,
    ContainerRequest,
    InputRequest,
    LaunchRequest,
    OutputRequest,
    PackagesRequest,
    Resume,
    SecretSource,
)
from rayjobs.protocol.nodes import Hello
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.target.versions import installed, parse
from rayjobs.workspace.azure import AzureSettings
from rayjobs.workspace.folder import id_of, needs_secrets


def azure_identity(served: Served, target: str) -> AzureIdentity:
    """Return the names of a workspace for programs of Azure ML v1. Blocks: it reads the store."""
    settings = AzureSettings(served.store)
    kept = settings.identity
    return AzureIdentity(
        workspace_name=served.name if kept is None else kept.name,
        workspace_id=id_of(served.path) or "",
        subscription_id="local" if kept is None else kept.subscription_id,
        resource_group="local" if kept is None else kept.resource_group,
        urls=settings.urls(),
        target_type="local" if target == "local" else "amlcompute",
    )


def launch_requests(
    record: AttemptRecord,
    allocation: AttemptAllocation,
    greetings: Sequence[Hello],
    master_port: int | None,
    *,
    target: str,
    lease_s: float | None,
    azure: AzureIdentity | None = None,
) -> tuple[list[NodeOfAttempt], list[LaunchRequest]]:
    """Return the attempt's nodes, each with its launch request.

    Args:
        greetings: The answer of each node's agent to `HELLO`.
        master_port: The port on the first node where the ranks meet; None: they need none.
        target: The name of the compute target.
        lease_s: Length of a host's lease in seconds: the host ends its ranks after two thirds of it
            without a renewal; the target assumes their end after all of it. None: no lease.
        azure: The names for programs of Azure ML v1, see `azure_identity`.

    Raises:
        PrepareError: class ``environment``: a node has another version of rayjobs.
    """
    check_nodes(greetings)
    spec, first = record.job.spec, greetings[0]
    planned = _planned(allocation, greetings)
    own_python = _own_python(spec)
    context = AttemptContext(
        job=record.job,
        attempt=record.number,
        nodes=planned,
        markers=tuple(ids.marker(record.job.id, record.number, one.node) for one in planned),
        workspace_name=record.served.name,
        workspace_path=record.served.path,
        azure=azure,
        master_port=master_port,
        injob_path=first.injob_path,
        python=own_python or first.python,
    )
    nodes, requests = [], []
    plans = launcher_for(spec).plans(context)
    for hello, where, plan_of_launcher in zip(greetings, planned, plans, strict=True):
        plan = replace(
            plan_of_launcher,
            # Each node's own interpreter: the nodes need not share a disk.
            injob_path=hello.injob_path,
            env=with_azureml(plan_of_launcher.env, hello.injob_path),
            python=own_python or hello.python,
            lease_s=lease_s,
            stall_timeout_s=spec.stall_timeout_s,
        )
        on = _on_node(plan, record, target=target, address=where.address)
        nodes.append(NodeOfAttempt(on, where.node_id))
        requests.append(_request(on, plan, record))
    return nodes, requests


def _planned(allocation: AttemptAllocation, greetings: Sequence[Hello]) -> tuple[PlannedNode, ...]:
    """Return the nodes of the allocation as the launcher needs them."""
    return tuple(
        PlannedNode(
            node=index,
            node_id=allocation.nodes[index],
            address=hello.address,
            root=Path(hello.root),
            gpus=allocation.gpus[index] if index < len(allocation.gpus) else (),
            base_environment=hello.environment,
        )
        for index, hello in enumerate(greetings)
    )


def _own_python(spec: JobSpec) -> str | None:
    """Return the interpreter that the job names for its nodes; None: the node or image has one."""
    if spec.container is not None or not isinstance(spec.environment, str):
        return None
    return spec.environment


def _packages(spec: JobSpec) -> Packages | None:
    """Return the packages that a node installs for the job; None: there are none."""
    return spec.environment if isinstance(spec.environment, Packages) else None


def _python_in_image(spec: JobSpec) -> str | None:
    """Return the interpreter that the job names in its image; None: the node looks for one."""
    if isinstance(spec.environment, str):
        return spec.environment
    packages = _packages(spec)
    if packages is not None and "/" in (packages.python or ""):
        return packages.python  # packages are added to this interpreter
    return None


def _on_node(
    plan: LaunchPlan, record: AttemptRecord, *, target: str, address: str | None
) -> AttemptOnNode:
    """Return the message that tells the agent of the plan's node which attempt a call is about."""
    spec, workspace = record.job.spec, record.served.path
    reads_secrets = needs_secrets(workspace) or bool(
        spec.inputs or spec.outputs or _packages(spec) or spec.secrets or spec.container
    )
    return AttemptOnNode(
        workspace=workspace,
        target=target,
        job=plan.job,
        attempt=plan.attempt,
        node=plan.node,
        marker=plan.marker,
        root=plan.root,
        socket=plan.socket,
        node_count=plan.node_count,
        ranks=tuple(one.rank for one in plan.ranks),
        address=address,
        boot_id=boot_id(),
        grace_s=plan.grace_s,
        max_duration_s=plan.max_duration_s,
        stall_timeout_s=plan.stall_timeout_s,
        lease_s=plan.lease_s,
        reads_secrets=reads_secrets,
        relay=plan.relay,
    )


def _request(on: AttemptOnNode, plan: LaunchPlan, record: AttemptRecord) -> LaunchRequest:
    """Return the request that has the agent of a node prepare and launch the attempt there."""
    job, spec = record.job, record.job.spec
    packages, container = _packages(spec), None
    if spec.container is not None:
        values = {**spec.container.model_dump(), "interpreter": _python_in_image(spec)}
        container = ContainerRequest.from_json(values)
    return LaunchRequest(
        on=on,
        plan=plan,
        snapshot=job.snapshot,
        environment=None if packages is None else PackagesRequest.from_json(packages.model_dump()),
        container=container,
        inputs={
            name: InputRequest.from_json(one.model_dump()) for name, one in spec.inputs.items()
        },
        outputs={
            name: OutputRequest.from_json(one.model_dump()) for name, one in spec.outputs.items()
        },
        secrets={
            name: SecretSource.from_json(one.model_dump()) for name, one in spec.secrets.items()
        },
        resume=Resume(run=job.id if record.number > 1 else None, path=spec.resume_from),
    )


def check_nodes(greetings: Sequence[Hello]) -> None:
    """Check that all nodes have this target actor's version of rayjobs.

    Ray itself refuses a node with another version of Ray or Python when it joins.

    Raises:
        PrepareError: class ``environment``: a node has another version of rayjobs.
    """
    own = installed()
    for greeting in greetings:
        other = greeting.installed
        if own is not None and other is not None and parse(other) != parse(own):
            raise PrepareError(
                f"node {greeting.address} has rayjobs {other} in {greeting.python}, "
                f"and the target runs rayjobs {own}. Install {own} on that node, and submit the "
                f"job again.",
                failure_class=FailureClass.ENVIRONMENT,
            )
