"""The orders that the agents of an attempt's nodes are given, made from its spec and places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs import ids
from rayjobs.compute.drivebase import DriveBase
from rayjobs.compute.versions import check_nodes
from rayjobs.injob.identity import boot_id
from rayjobs.launch.plan import AttemptContext, Place, launcher_for
from rayjobs.spec import Packages


def orders_of(
    drive: DriveBase, greetings: Sequence[Mapping[str, Any]], master_port: int | None
) -> list[dict[str, Any]]:
    """Return what the agent of each of the drive's nodes is told, its host's plan among it.

    Args:
        greetings: Of each node, what its agent said (`Agent.hello`).
        master_port: Where the ranks meet on the first node; None where they do not.

    Raises:
        PrepareError: class ``environment``: a node's installation does not fit.
    """
    check_nodes(greetings)
    spec = drive.job.spec
    places = tuple(
        Place(
            node=index,
            node_id=drive.held.nodes[index],
            address=str(hello["address"]),
            root=Path(hello["root"]),
            gpus=drive.held.gpus[index] if index < len(drive.held.gpus) else (),
            base_environment=hello["environment"],
        )
        for index, hello in enumerate(greetings)
    )
    context = AttemptContext(
        job=drive.job,
        attempt=drive.number,
        places=places,
        markers=tuple(ids.marker(drive.job.id, drive.number, place.node) for place in places),
        workspace_name=drive.served.name,
        workspace_path=drive.served.path,
        master_port=master_port,
        injob_path=str(greetings[0]["injob_path"]),
        python=spec.environment
        if isinstance(spec.environment, str)
        else str(greetings[0]["python"]),
    )
    return [
        {
            "workspace": drive.served.path,
            "target": drive.parts.target,
            "node_id": place.node_id,
            "address": place.address,
            "boot_id": boot_id(),
            "snapshot": drive.job.snapshot,
            "environment": spec.environment.model_dump()
            if isinstance(spec.environment, Packages)
            else None,
            "inputs": {name: one.model_dump() for name, one in spec.inputs.items()},
            "outputs": {name: one.model_dump() for name, one in spec.outputs.items()},
            "secrets": {name: ref.model_dump() for name, ref in spec.secrets.items()},
            "resume": {
                "run": drive.job.id if drive.number > 1 else None,
                "path": spec.resume_from,
            },
            "plan": {
                **plan,
                # Of the node itself: it need not share a disk with the first one.
                "injob_path": str(hello["injob_path"]),
                "python": plan["python"]
                if isinstance(spec.environment, str)
                else str(hello["python"]),
                "lease_s": drive.parts.leases.lease_s,
                "stall_timeout_s": spec.stall_timeout_s,
            },
        }
        for hello, place, plan in zip(
            greetings, places, launcher_for(spec).plans(context), strict=True
        )
    ]
