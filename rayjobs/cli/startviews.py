"""Describes, for a dry run, what starts the processes of a plan and how each gets its rank."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayjobs.launch.plan import TORCH_BACKENDS

SHOWN_RANKS = 8  # of a larger job, the first ones and the last; --json lists all
# Other names for the same numbers.
LEFT_OUT = ("OMPI_", "AZ_", "AZUREML_")


def start_lines(
    spec: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line.

    Args:
        spec: The job's, as JSON data.
        hosts: The launch plan of each node's host.
    """
    backend = spec["distribution"]["backend"]
    mpirun = (hosts[0].get("extras") or {}).get("command")
    if mpirun is not None:
        yield "Started by", shlex.join(mpirun)
        return
    who = "the attempt host of each node" if len(hosts) > 1 else "the node's attempt host"
    yield "Started by", f"{who}, once for each process: {_command(spec, hosts[0])}"
    if backend in TORCH_BACKENDS:
        yield "All ranks", "MASTER_ADDR and MASTER_PORT: rank 0's node, and a port free there"
    elif backend == "horovod-gloo":
        rank_variables = {
            name: value for name, value in hosts[0]["env"].items() if _is_shown(name, backend)
        }
        met = "HOROVOD_GLOO_RENDEZVOUS_ADDR and …_PORT: rank 0's node, and a port free there"
        yield "All ranks", f"{_assigned(rank_variables)} {met}"
    else:
        return
    ranks = [rank for host in hosts for rank in host["ranks"]]
    shown = ranks if len(ranks) <= SHOWN_RANKS else [*ranks[: SHOWN_RANKS - 1], ranks[-1]]
    for rank in shown:
        named = {name: value for name, value in rank["env"].items() if _is_shown(name, backend)}
        yield f"Rank {rank['rank']}", _assigned(named)


def _command(spec: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    if spec["command"] is not None:
        return shlex.join(["/bin/sh", "-c", spec["command"]])
    environment = spec["environment"]
    python = environment if isinstance(environment, str) else "python"
    return shlex.join([python, *host["argv"]])


def _is_shown(name: str, backend: str) -> bool:
    """Return whether a variable holds a rank; Horovod uses its own names."""
    if backend == "horovod-gloo":
        return name.startswith("HOROVOD_") and not name.startswith("HOROVOD_GLOO_RENDEZVOUS_")
    return not name.startswith(LEFT_OUT)


def _assigned(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
