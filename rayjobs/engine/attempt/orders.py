"""The launch requests of an attempt's nodes, made from its spec and places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rayjobs.core import ids
from rayjobs.core.errors import PrepareError
from rayjobs.engine.attempt.record import DriveBase
from rayjobs.engine.attempt_nodes import NodeOfAttempt
from rayjobs.injob.identity import boot_id
from rayjobs.launch.plan import AttemptContext, Place, launcher_for
from rayjobs.protocol.attempts import (
    AttemptOnNode,
    InputRequest,
    LaunchRequest,
    OutputRequest,
    PackagesRequest,
    Resume,
    SecretSource,
)
from rayjobs.protocol.nodes import Hello
from rayjobs.spec.model import Packages
from rayjobs.target.versions import installed, parse


def requests_of(
    drive: DriveBase, greetings: Sequence[Hello], master_port: int | None
) -> tuple[list[NodeOfAttempt], list[LaunchRequest]]:
    """Return each of the attempt's nodes, and what it is to prepare and launch.

    Args:
        greetings: Of each node, what its agent said.
        master_port: Where the ranks meet on the first node; None where they do not.

    Raises:
        PrepareError: class ``environment``: a node's installation does not fit.
    """
    check_nodes(greetings)
    spec, first = drive.job.spec, greetings[0]
    places = tuple(
        Place(
            node=index,
            node_id=drive.held.nodes[index],
            address=hello.address,
            root=Path(hello.root),
            gpus=drive.held.gpus[index] if index < len(drive.held.gpus) else (),
            base_environment=hello.environment,
        )
        for index, hello in enumerate(greetings)
    )
    own_python = spec.environment if isinstance(spec.environment, str) else None
    context = AttemptContext(
        job=drive.job,
        attempt=drive.number,
        places=places,
        markers=tuple(ids.marker(drive.job.id, drive.number, place.node) for place in places),
        workspace_name=drive.served.name,
        workspace_path=drive.served.path,
        master_port=master_port,
        injob_path=first.injob_path,
        python=own_python or first.python,
    )
    nodes, requests = [], []
    for hello, place, planned in zip(
        greetings, places, launcher_for(spec).plans(context), strict=True
    ):
        plan = replace(
            planned,
            # Of the node itself: it need not share a disk with the first one.
            injob_path=hello.injob_path,
            python=own_python or hello.python,
            lease_s=drive.parts.leases.lease_s,
            stall_timeout_s=spec.stall_timeout_s,
        )
        packages = spec.environment if isinstance(spec.environment, Packages) else None
        on = AttemptOnNode(
            workspace=drive.served.path,
            target=drive.parts.target,
            job=plan.job,
            attempt=plan.attempt,
            node=plan.node,
            marker=plan.marker,
            root=plan.root,
            socket=plan.socket,
            node_count=plan.node_count,
            ranks=tuple(one.rank for one in plan.ranks),
            address=place.address,
            boot_id=boot_id(),
            grace_s=plan.grace_s,
            max_duration_s=plan.max_duration_s,
            stall_timeout_s=plan.stall_timeout_s,
            lease_s=plan.lease_s,
            reads_secrets=bool(spec.inputs or spec.outputs or packages or spec.secrets),
            relay=plan.relay,
        )
        nodes.append(NodeOfAttempt(on, place.node_id))
        requests.append(
            LaunchRequest(
                on=on,
                plan=plan,
                snapshot=drive.job.snapshot,
                environment=None
                if packages is None
                else PackagesRequest.from_json(packages.model_dump()),
                inputs={
                    name: InputRequest.from_json(one.model_dump())
                    for name, one in spec.inputs.items()
                },
                outputs={
                    name: OutputRequest.from_json(one.model_dump())
                    for name, one in spec.outputs.items()
                },
                secrets={
                    name: SecretSource.from_json(ref.model_dump())
                    for name, ref in spec.secrets.items()
                },
                resume=Resume(
                    run=drive.job.id if drive.number > 1 else None, path=spec.resume_from
                ),
            )
        )
    return nodes, requests


def check_nodes(greetings: Sequence[Hello]) -> None:
    """Check that what agents said fits this target actor, and each other.

    Ray itself refuses a node with another Ray or Python when it joins.

    Raises:
        PrepareError: class ``environment``: a node has another rayjobs installed.
    """
    own = installed()
    for greeting in greetings:
        other = greeting.installed
        if own is not None and other is not None and parse(other) != parse(own):
            raise PrepareError(
                f"node {greeting.address} has rayjobs {other} in {greeting.python}, "
                f"and the target runs rayjobs {own}. Install {own} on that node, and submit the "
                f"job again.",
                failure_class="environment",
            )
