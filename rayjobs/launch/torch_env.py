"""Launches ranks for torch.distributed's ``env://``: one host per node, P ranks each."""

from __future__ import annotations

from dataclasses import replace

from rayjobs.injob.plan import RANK_ZERO_FIRST, ExtrasPlan, LaunchPlan
from rayjobs.launch.plan import AttemptContext, PlannedNode, host_plan
from rayjobs.spec.model import JobSpec

# The longest time that the other ranks wait for rank 0 to listen before they start. A script that
# imports for longer still takes no longer in total, since rank 0 then waits for them.
MOST_S = 0.1
# For nodes that cannot see whether rank 0 listens.
ELSEWHERE_S = 0.05


class TorchLauncher:
    """Plans ranks of torch.distributed over gloo or nccl, numbered node by node."""

    def plans(self, context: AttemptContext) -> list[LaunchPlan]:
        """Return the plan of each node's host; node 0's host reserves the rendezvous port.

        Without a port in the context (`--dry-run`), the variables that name it are left out.
        """
        return [self._plan(context, planned) for planned in context.nodes]

    def _plan(self, context: AttemptContext, planned: PlannedNode) -> LaunchPlan:
        spec = context.job.spec
        each = [
            rank_variables(spec, planned.node, local)
            for local in range(spec.distribution.processes_per_node)
        ]
        here = planned.node == 0
        extras: ExtrasPlan | None = None
        if context.master_port is not None and spec.distribution.world_size > 1:
            extras = ExtrasPlan(
                RANK_ZERO_FIRST,
                port=context.master_port if here else None,
                most_s=MOST_S if here else ELSEWHERE_S,
            )
        plan = host_plan(context, planned, each)
        return replace(
            plan,
            env={**plan.env, **meeting_variables(context)},
            address=planned.address,
            master_port=context.master_port if here else None,
            extras=extras,
        )


def rank_variables(spec: JobSpec, node: int, local_rank: int) -> dict[str, str]:
    """Return the variables that tell a rank its number.

    Source: torch's ``env://`` names (as `torchrun` sets them) and Open MPI's.
    """
    shape = spec.distribution
    rank = node * shape.processes_per_node + local_rank
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(shape.world_size),
        "LOCAL_WORLD_SIZE": str(shape.processes_per_node),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(shape.world_size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(shape.processes_per_node),
    }


def meeting_variables(context: AttemptContext) -> dict[str, str]:
    """Return the variables that tell all ranks where rank 0 listens.

    Source: torch's ``env://`` names, and those of Azure Batch AI.
    """
    if context.master_port is None:
        return {}
    address, port = context.nodes[0].address, str(context.master_port)
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "AZ_BATCHAI_PYTORCH_INIT_METHOD": f"tcp://{address}:{port}",
        "AZ_BATCH_MASTER_NODE": f"{address}:{port}",
    }
