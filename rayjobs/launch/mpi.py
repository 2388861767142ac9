"""Launches ranks with Open MPI: mpirun on the first node, orted on the others, without ssh.

All of these are children of the attempt hosts, which also fork the ranks (injob.mpi).
"""

from __future__ import annotations

from dataclasses import replace

from rayjobs.core.paths import short_socket
from rayjobs.injob.mpi import REMOTE
from rayjobs.injob.plan import MPI, ExtrasPlan, LaunchPlan, Peer
from rayjobs.launch.plan import AttemptContext, PlannedNode, host_plan
from rayjobs.launch.torch_env import meeting_variables, rank_variables
from rayjobs.spec.model import JobSpec

# The command that mpirun starts for each rank. Each node sets its own values of the variables.
RANK_COMMAND = ("/bin/sh", "-c", 'exec "$RAYJOBS_MPI_PYTHON" -S -E "$RAYJOBS_MPI_STUB" rank')
FIRST_NODE = "localhost"
LOOPBACK = "127."


class MpiLauncher:
    """Plans ranks under mpirun, numbered node by node; each plan says what its host starts."""

    def plans(self, context: AttemptContext) -> list[LaunchPlan]:
        """Return the plan of each node's host; the first plan has mpirun's command line.

        Without a port in the context (`--dry-run`), the plans omit the variables that name it.
        """
        names = node_names(len(context.nodes))
        sockets = [str(short_socket("mpi", marker)) for marker in context.markers]
        return [self._plan(context, planned, names, sockets) for planned in context.nodes]

    def _plan(
        self, context: AttemptContext, planned: PlannedNode, names: list[str], sockets: list[str]
    ) -> LaunchPlan:
        spec = context.job.spec
        each = [
            without_mpi(rank_variables(spec, planned.node, local))
            for local in range(spec.distribution.processes_per_node)
        ]
        here = planned.node == 0
        others = context.nodes[1:] if here else ()
        extras = ExtrasPlan(
            MPI,
            socket=sockets[planned.node],
            nodes=tuple(names),
            shares_machine=shares_machine(context, planned),
            command=tuple(command(spec)) if here else None,
            peers=tuple(Peer(one.node, one.node_id, sockets[one.node]) for one in others),
        )
        plan = host_plan(context, planned, each)
        return replace(
            plan,
            env={**plan.env, **meeting_variables(context)},
            address=planned.address,
            master_port=context.master_port if here else None,
            extras=extras,
        )


def shares_machine(context: AttemptContext, planned: PlannedNode) -> bool:
    """Return whether an earlier node of the attempt is on the same machine, by its address."""
    earlier = [one.address for one in context.nodes[: planned.node]]
    is_loopback = planned.address.startswith(LOOPBACK)
    return planned.address in earlier or (is_loopback and bool(earlier))


def without_mpi(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables without those that mpirun sets."""
    return {name: value for name, value in variables.items() if not name.startswith("OMPI_")}


def node_names(count: int) -> list[str]:
    """Return the names that mpirun uses for the nodes.

    All but the first are loopback addresses that no interface has. So mpirun resolves no name and
    takes none for its own machine, and several nodes may share a machine. Nothing connects to them.
    """
    return [
        FIRST_NODE,
        *(f"127.{1 + n // 65024}.{n // 254 % 256}.{n % 254 + 1}" for n in range(count - 1)),
    ]


def command(spec: JobSpec) -> list[str]:
    """Return mpirun's command line; it must run in the folder with the replacement for ssh."""
    shape = spec.distribution
    hosts = ",".join(f"{name}:{shape.processes_per_node}" for name in node_names(shape.nodes))
    return [
        "mpirun",
        *("-np", str(shape.world_size)),
        *("-H", hosts),
        *("--map-by", "slot"),
        *("--bind-to", "none"),
        *("--wdir", "/"),
        "--leave-session-attached",
        *("--mca", "plm_rsh_agent", f"/bin/sh ./{REMOTE}"),
        *("--mca", "plm_rsh_no_tree_spawn", "1"),
        *RANK_COMMAND,
    ]
