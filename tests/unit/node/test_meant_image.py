"""All nodes of a job use the image that its first node found under its name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.paths import IMAGE_RECORD
from rayjobs.launch.launchers import launcher_for
from rayjobs.launch.plan import AttemptContext, PlannedNode
from rayjobs.node.node import Node
from rayjobs.protocol.attempts import ContainerRequest, LaunchRequest
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import request_of
from tests.support.containers import image, needs_containers
from tests.support.images import file, layer, oci_folder, tar_of

__all__ = ["image"]
pytestmark = [needs_containers, pytest.mark.long, pytest.mark.timeout(240)]


def requests_of(workspace: OpenWorkspace, nodes: list[Node], images: list[Path]) -> list[
    LaunchRequest
]:  # fmt: skip
    """Return the requests to the nodes of one job."""
    shape = {"nodes": len(nodes), "processes_per_node": 1, "backend": "gloo"}
    spec = JobSpec.model_validate({"script": "train.py", "distribution": shape})
    new = NewJob(spec=spec, experiment="test", snapshot=None, user="ada")
    job, _ = workspace.store.submit(new)
    assert workspace.store.start(job.id, attempt=0, allocation="a") is not None
    planned = [PlannedNode(n, f"n{n}", "127.0.0.1", node.paths.root) for n, node in
               enumerate(nodes)]  # fmt: skip
    context = AttemptContext(
        job=job, attempt=1, nodes=tuple(planned), markers=("m0", "m1"), workspace_name="ws",
        workspace_path=str(workspace.path),
    )  # fmt: skip
    return [
        request_of(plan, workspace.path, container=ContainerRequest(image=str(place)))
        for plan, place in zip(launcher_for(spec).plans(context), images, strict=True)
    ]


def test_a_further_node_waits_for_the_first_and_refuses_another_image(
    tmp_path: Path, image: Path
) -> None:
    one = oci_folder(tmp_path / "one", [tar_of(image)])
    two = oci_folder(tmp_path / "two", [tar_of(image), layer([file("etc/more", b"")])])
    nodes = [Node("local", tmp_path / f"home{n}") for n in range(2)]

    async def prepared(images: list[Path]) -> str:
        first, second = requests_of(workspace, nodes, images)
        waiting = asyncio.ensure_future(nodes[1].prepare(second))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done, "the first node has not said which image is meant"
        await nodes[0].prepare(first)
        await waiting
        return first.on.job

    with open_workspace(tmp_path / "ws", create=True) as workspace:
        with pytest.raises(PrepareError, match="differs on this node") as caught:
            asyncio.run(prepared([one, two]))
        job = asyncio.run(prepared([one, one]))
        (stored,) = [each for each in workspace.store.files(job) if each.name == IMAGE_RECORD]
        with workspace.blobs.open(stored.blob) as stream:
            assert json.loads(stream.read())["digest"].startswith("sha256:")
    assert caught.value.failure_class == "environment"
