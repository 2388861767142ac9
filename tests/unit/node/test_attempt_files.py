"""The small files in which an attempt names what it uses: of this version, and of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayjobs.containers.attempt_files import MeantImage, UsedImage
from rayjobs.containers.cache import ImageCache
from rayjobs.containers.images import ImageWork
from rayjobs.core.errors import PrepareError
from rayjobs.core.paths import IMAGE_RECORD, AttemptPaths, NodePaths
from rayjobs.environments.attempt_files import UsedEnvironment, UsedHorovod
from rayjobs.environments.building import Control
from rayjobs.environments.cache import Cache
from rayjobs.injob.messages import Message
from rayjobs.node.build_logs import store_file
from rayjobs.node.containers import NodeContainers, _image_of_attempt
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.snapshots import NodeSnapshots
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.folder import open_workspace
from tests.support.attempts import on_node

# As version 0.1.0 wrote them: `UsedImage` before the image is ready, and afterwards.
OLD: list[tuple[Any, dict[str, Any]]] = [
    (UsedEnvironment("k", "/e/bin/python"), {"key": "k", "python": "/e/bin/python"}),
    (UsedHorovod("k", "/e/k/packages"), {"key": "k", "packages": "/e/k/packages"}),
    (UsedImage("k"), {"key": "k"}),
    (
        UsedImage(None, "/image", {"PATH": "/bin"}, is_private=True),
        {"key": None, "root": "/image", "variables": {"PATH": "/bin"}, "is_private": True},
    ),
]


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    found = NodePaths(tmp_path / "node").attempt("job", 1)
    found.root.mkdir(parents=True)
    return found


def file_of(paths: AttemptPaths, kind: type[Message]) -> Path:
    by_kind: dict[type[Message], Path] = {
        UsedEnvironment: paths.environment,
        UsedHorovod: paths.horovod,
        UsedImage: paths.image,
    }
    return by_kind[kind]


@pytest.mark.parametrize(("used", "values"), OLD)
def test_files_of_other_versions_are_read(
    paths: AttemptPaths, used: Any, values: dict[str, Any]
) -> None:
    file = file_of(paths, type(used))
    assert type(used).read(paths) is None
    used.write(paths)
    assert type(used).read(paths) == used
    assert values.items() <= json.loads(file.read_text()).items()  # an earlier version reads it
    for written in (values, {**values, "colour": "red"}):
        file.write_text(json.dumps(written))
        assert type(used).read(paths) == used


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": 3}'])
@pytest.mark.parametrize("kind", [UsedEnvironment, UsedHorovod, UsedImage])
def test_damaged_file_is_refused(paths: AttemptPaths, kind: Any, text: str) -> None:
    file_of(paths, kind).write_text(text)
    with pytest.raises(ValueError):
        kind.read(paths)


def test_a_prune_knows_what_attempts_use_and_passes_over_damaged_files(tmp_path: Path) -> None:
    node = NodePaths(tmp_path / "node")
    attempts = [node.attempt(job, 1) for job in ("one", "two", "torn")]
    for each in attempts:
        each.root.mkdir(parents=True)
    UsedEnvironment("e1", "/e1/bin/python").write(attempts[0])
    UsedHorovod("h1", "/h1/packages").write(attempts[0])
    UsedImage("i1").write(attempts[0])
    UsedImage(None, "/opt/image").write(attempts[1])  # it is in no cache
    attempts[2].environment.write_text('{"key": ')
    attempts[2].image.mkdir()
    assert Cache(node.environments).used_by() == {"e1": ["one/a1"], "h1": ["one/a1"]}
    assert ImageCache(node.images).used_by() == {"i1": ["one/a1"]}


Resolve = Callable[[int, int], MeantImage | None]


@pytest.fixture
def stored(tmp_path: Path, paths: AttemptPaths) -> Callable[[str], Resolve]:
    """Store a text as the image of a job's first attempt; what a node then resolves."""

    def store(text: str) -> Resolve:
        with open_workspace(tmp_path / "ws", create=True) as workspace:
            new = NewJob(spec=JobSpec(script="a.py"), experiment="e", snapshot=None, user="u")
            job, _ = workspace.store.submit(new)
            assert workspace.store.start(job.id, attempt=0, allocation="a") is not None
        on: AttemptOnNode = on_node(
            paths.root, workspace=str(tmp_path / "ws"), job=job.id, node_count=2
        )
        workspaces = Workspaces()
        paths.meant_image.write_text(text)
        store_file(workspaces, on, paths.meant_image, IMAGE_RECORD)
        containers = NodeContainers(tmp_path / "i", workspaces, NodeSnapshots(tmp_path / "s"))
        work = ImageWork(paths, Control("m"), lambda _text, _data: None)

        def meant(attempt: int, node: int) -> MeantImage | None:
            asked = replace(on, attempt=attempt, node=node)
            return asyncio.run(containers._meant(asked, work))

        return meant

    return store


def test_other_nodes_and_retries_use_the_record_of_a_later_version(
    stored: Callable[[str], Resolve],
) -> None:
    meant = stored(json.dumps({"digest": "sha256:1", "pinned": "r/i@sha256:2", "colour": "red"}))
    assert meant(1, 1) == MeantImage("sha256:1", "r/i@sha256:2")
    assert meant(2, 0) == MeantImage(pinned="r/i@sha256:2")


def test_a_damaged_record_ends_the_wait_and_not_a_retry(stored: Callable[[str], Resolve]) -> None:
    meant = stored('{"digest": 3}')
    with pytest.raises(PrepareError, match="first node resolved is not known: a meant image"):
        meant(1, 1)
    assert meant(2, 0) is None


def test_an_attempt_whose_image_is_not_ready_is_not_launched(paths: AttemptPaths) -> None:
    with pytest.raises(PrepareError, match="names no image that is ready"):
        _image_of_attempt(paths)
    UsedImage("k").write(paths)
    with pytest.raises(PrepareError, match="names no image that is ready"):
        _image_of_attempt(paths)
    paths.image.write_text("{")
    with pytest.raises(PrepareError, match="image cannot be read"):
        _image_of_attempt(paths)
