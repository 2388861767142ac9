"""Prepares the first node of a two-node job with a real agent's code; returns the events."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rayjobs.jobs.records import Event
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.node.node import Node
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import open_workspace
from tests.support.attempts import request_of

SHAPE = {"nodes": 2, "processes_per_node": 1, "backend": "gloo"}


def prepared(
    folder: Path, *, address: str = "127.0.0.1", gpus: tuple[str, ...] = ()
) -> list[Event]:
    """Prepare the node in a new folder; return the job's history."""
    node = Node("local", folder / "home")
    with open_workspace(folder / "ws", create=True) as workspace:
        spec = JobSpec.model_validate({"script": "train.py", "distribution": SHAPE})
        job, _ = workspace.store.submit(
            NewJob(spec=spec, experiment="test", snapshot=None, user="ada")
        )
        assert workspace.store.start(job.id, attempt=0, allocation="a") is not None
        context = AttemptContext(
            job=job,
            attempt=1,
            nodes=tuple(
                PlannedNode(n, f"n{n}", address, node.paths.root, gpus=gpus) for n in range(2)
            ),
            markers=("m0", "m1"),
            workspace_name="ws",
            workspace_path=str(workspace.path),
        )
        plan = launcher_for(spec).plans(context)[0]
        asyncio.run(node.prepare(request_of(plan, workspace.path)))
        return list(workspace.store.events(job.id))
