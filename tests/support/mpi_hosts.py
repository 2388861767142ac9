"""Attempts whose ranks MPI starts, on real hosts and with real mpirun, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.failures import Failure
from rayjobs.environments.horovod import builds
from rayjobs.injob.answers import Answer
from rayjobs.injob.exit_record import ExitRecord
from rayjobs.injob.identity import Identity, identity_of
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import LaunchPlan, Peer
from rayjobs.jobs import rootcause
from rayjobs.launch import hostclient, mpirelay, openmpi
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.launch.mpi import command, node_names
from rayjobs.spec.model import Distribution, JobSpec
from tests.conformance.hosts import Attempt, until

ADDRESS = "127.0.0.1"

# Set-up installs both. If that fails, it reports why; in CI the tests then fail.
_MUST = bool(os.environ.get("CI"))
needs_mpi = pytest.mark.skipif(
    bool(openmpi.problem(os.environ.get("PATH"))) and not _MUST,
    reason="Open MPI 4 is not installed: apt-get install openmpi-bin",
)
needs_horovod = pytest.mark.skipif(
    builds.of_interpreter(Path(sys.executable)) is None and not _MUST,
    reason="Horovod is not installed: run `rayjobs horovod install`",
)


@dataclass
class MpiAttempt:
    """One attempt on several simulated nodes of this machine, each with its own host."""

    nodes: list[Attempt]

    @staticmethod
    def make(
        folder: Path, script: str, *, nodes: int = 1, processes: int = 2, **changes: Any
    ) -> MpiAttempt:
        """Prepare the hosts' folders; `changes` go into every plan."""
        shape = Distribution(nodes=nodes, processes_per_node=processes, backend="mpi")
        spec = JobSpec(script="train.py", distribution=shape)
        made = []
        for node in range(nodes):
            ranks = range(node * processes, (node + 1) * processes)
            attempt = Attempt.make(
                folder,
                script,
                node=node,
                node_count=nodes,
                **{"grace_s": 2.0, **changes},
            )
            attempt.plan["address"] = ADDRESS
            attempt.plan["ranks"] = [
                {"rank": rank, "local_rank": local, "env": {}} for local, rank in enumerate(ranks)
            ]
            attempt.plan["extras"] = {
                "kind": "mpi",
                "socket": str(Path(attempt.plan["socket"]).with_suffix(".mpi")),
                "nodes": node_names(nodes),
                "shares_machine": node > 0,
            }
            made.append(attempt)
        made[0].plan["extras"] |= {
            "command": command(spec),
            "peers": [
                {"node": node, "node_id": str(node), "socket": one.plan["extras"]["socket"]}
                for node, one in enumerate(made)
                if node
            ],
        }
        return MpiAttempt(made)

    def start(self, warm: str | None) -> MpiAttempt:
        """Start all hosts, cold without a warm interpreter."""
        for attempt in self.nodes:
            attempt.start(warm) if warm is not None else attempt.start_cold()
        return self

    @contextmanager
    def relayed(self) -> Iterator[None]:
        """Relay mpirun's requests to the other hosts meanwhile, as the agents do."""
        relay = LaunchPlan.from_json(self.nodes[0].plan).relay
        if relay is None:  # one node, or no MPI
            yield
            return

        async def start(peer: Peer, text: str) -> Answer:
            return await mpirelay.start_daemon(peer.socket, text)

        def work() -> None:
            asyncio.run(mpirelay.relay(relay, start))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield
        thread.join(60)
        assert not thread.is_alive(), "the relay never ended"

    def wait(self) -> list[dict[str, Any]]:
        """The exit records, once every host has ended."""
        return [attempt.wait() for attempt in self.nodes]

    def wait_as_group(self) -> list[dict[str, Any]]:
        """Return the same as `wait`; the first node that does not complete ends the others."""

        def first_bad() -> bool:
            records = [hostclient.read_exit_record(str(one.root)) for one in self.nodes]
            ended = all(record is not None for record in records)
            return ended or any(one and one.outcome is not Outcome.COMPLETED for one in records)

        until(first_bad, "the end of the first node")
        for attempt in self.nodes:
            with contextlib.suppress(hostclient.HostGone):
                attempt.cancel()
        return self.wait()

    def launcher(self, node: int = 0) -> Identity:
        """mpirun (node 0) or orted, once it runs."""
        name = "orted" if node else "mpirun"

        def look() -> Identity | None:
            for stat in self.nodes[node].members():
                if stat.comm == name:
                    return identity_of(stat.pid)
            return None

        return until(look, f"{name} runs")

    def cause(self, records: list[dict[str, Any]]) -> Failure:
        """The failure that users would see."""
        tails = {
            rank["rank"]: node.log(rank["rank"])
            for node in self.nodes
            for rank in node.plan["ranks"]
        }
        failure = rootcause.diagnose([ExitRecord.from_json(one) for one in records], tails)[1]
        assert failure is not None, records
        return failure

    def nothing_left(self) -> None:
        """Check that no process is left on any node, and no file in the shared memory folder."""
        for attempt in self.nodes:
            until(partial(_has_ended, attempt.marker), "the end of all processes")
        assert not list(Path("/dev/shm").glob("vader_segment*"))

    def cancel(self) -> None:
        """Cancel the attempt on every node."""
        for attempt in self.nodes:
            attempt.cancel()

    def mpi_log(self, node: int = 0) -> str:
        """The output of mpirun or orted."""
        path = self.nodes[node].root / "log" / "mpi.log"
        return path.read_text() if path.exists() else ""


def _has_ended(marker: str) -> bool:
    return not find_leftovers(marker)
