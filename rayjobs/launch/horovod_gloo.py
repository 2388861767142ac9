"""Launches ranks with Horovod's Gloo controller: without MPI, over a server on the first node.

Source: the variables of `horovod.runner.gloo_run.create_slot_env_vars` 0.28.
"""

from __future__ import annotations

from dataclasses import replace

from rayjobs.injob.plan import HOROVOD_GLOO, ExtrasPlan, LaunchPlan
from rayjobs.launch.mpi import without_mpi
from rayjobs.launch.plan import AttemptContext, PlannedNode, host_plan
from rayjobs.launch.torch_env import rank_variables
from rayjobs.spec.model import JobSpec


class HorovodGlooLauncher:
    """Plans ranks that find each other through a small server next to the first node's ranks."""

    def plans(self, context: AttemptContext) -> list[LaunchPlan]:
        """Return the plan of each node's host.

        Without a port in the context (`--dry-run`), the variable that names it is left out.
        """
        return [self._plan(context, planned) for planned in context.nodes]

    def _plan(self, context: AttemptContext, planned: PlannedNode) -> LaunchPlan:
        spec = context.job.spec
        each = [
            without_mpi(rank_variables(spec, planned.node, local))
            | horovod_variables(spec, planned.node, local)
            for local in range(spec.distribution.processes_per_node)
        ]
        rendezvous = {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": context.nodes[0].address,
        }
        # Read from the spec, since our value replaces the job's: a job that sets this variable says
        # that it exchanges CPU tensors.
        on_cpu = bool(spec.environment_variables.get("HOROVOD_CPU_OPERATIONS"))
        if context.master_port is not None:
            rendezvous["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(context.master_port)
        here = planned.node == 0
        port = context.master_port if here else None
        plan = host_plan(context, planned, each)
        return replace(
            plan,
            env={**plan.env, **rendezvous},
            address=planned.address,
            master_port=port,
            extras=ExtrasPlan(HOROVOD_GLOO, on_cpu=on_cpu, port=port),
        )


def horovod_variables(spec: JobSpec, node: int, local_rank: int) -> dict[str, str]:
    """Return the variables that tell Horovod which rank it is."""
    shape = spec.distribution
    return {
        "HOROVOD_HOSTNAME": f"node-{node}",
        "HOROVOD_RANK": str(node * shape.processes_per_node + local_rank),
        "HOROVOD_SIZE": str(shape.world_size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(shape.processes_per_node),
        "HOROVOD_CROSS_RANK": str(node),
        "HOROVOD_CROSS_SIZE": str(shape.nodes),
    }
