"""Attempts whose ranks MPI starts, on real hosts and with real mpirun, without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayjobs.launch import mpirelay
from rayjobs.launch.mpi import command, node_names
from rayjobs.spec import Distribution, JobSpec
from tests.conformance.hosts import Attempt

ADDRESS = "127.0.0.1"


@dataclass
class MpiAttempt:
    """One attempt on several pretended nodes of this machine, each with a host of its own."""

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
            attempt.plan["ranks"] = [
                {"rank": rank, "local_rank": local, "env": {}} for local, rank in enumerate(ranks)
            ]
            attempt.plan["beside"] = {
                "kind": "mpi",
                "socket": str(Path(attempt.plan["socket"]).with_suffix(".mpi")),
                "address": ADDRESS,
                "nodes": node_names(nodes),
                "shares_machine": node > 0,
            }
            made.append(attempt)
        made[0].plan["beside"] |= {
            "command": command(spec),
            "peers": [
                {"node": node, "node_id": str(node), "socket": one.plan["beside"]["socket"]}
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
        """Bring mpirun's requests to the other hosts meanwhile, as the agents do."""
        plan = self.nodes[0].plan

        async def start(peer: Mapping[str, Any], text: str) -> str:
            return await mpirelay.start_daemon(str(peer["socket"]), text)

        def work() -> None:
            asyncio.run(mpirelay.relay(plan, start))

        thread = threading.Thread(target=work, daemon=True)
        if mpirelay.is_needed(plan):
            thread.start()
        yield
        if thread.ident is not None:
            thread.join(60)
            assert not thread.is_alive(), "the relay never ended"

    def wait(self) -> list[dict[str, Any]]:
        """The exit records, once every host has ended."""
        return [attempt.wait() for attempt in self.nodes]

    def cancel(self) -> None:
        """Cancel the attempt on every node."""
        for attempt in self.nodes:
            attempt.cancel()

    def mpi_log(self, node: int = 0) -> str:
        """What mpirun or orted said."""
        path = self.nodes[node].root / "log" / "mpi.log"
        return path.read_text() if path.exists() else ""
