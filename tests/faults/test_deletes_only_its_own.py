"""A clean-up never follows links of a job: it removes the links and keeps their targets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from rayjobs import snapshots
from rayjobs.core.paths import AttemptPaths, runtime_dir
from rayjobs.injob.identity import identity_of
from rayjobs.node.node import Node
from rayjobs.protocol.attempts import LaunchRequest
from rayjobs.target import local_head, stopping
from tests.support.attempts import data_request

LONG_AGO = 1_000_000_000


@pytest.fixture
def node(own_home: Path) -> Node:
    return Node("local", own_home)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that must not be changed."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")
    return folder


def request(node: Node, job: str = "job", attempt: int = 1) -> LaunchRequest:
    root = node.paths.attempt(job, attempt).root
    socket = str(node.paths.root / "host.sock")
    return data_request(root, job=job, attempt=attempt, marker=f"rj-none-{job}", socket=socket)


def prepare(node: Node, one: LaunchRequest) -> AttemptPaths:
    node._preparing.make_folder(one)
    paths = AttemptPaths(Path(one.on.root))
    paths.plan.write_text(json.dumps(one.plan.to_json()))
    return paths


def clean(node: Node, one: LaunchRequest) -> bool:
    """Clean up after an attempt; return whether its scratch was removed."""
    return asyncio.run(node.ends.clean(one.on)).proven


def test_links_in_an_attempts_folder_are_not_followed(node: Node, precious: Path) -> None:
    one = request(node)
    paths = prepare(node, one)
    (paths.work / "link").symlink_to(precious)
    (paths.work / "file").symlink_to(precious / "thesis.txt")
    read_only = paths.work / "read-only"
    read_only.mkdir()
    (read_only / "kept").write_text("")
    read_only.chmod(0o500)
    assert clean(node, one)
    assert not paths.root.parent.exists()
    assert (precious / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize("place", ["attempt", "job", "attempts"])
def test_link_in_place_of_a_folder_protects_its_target(
    node: Node, precious: Path, place: str
) -> None:
    one = request(node)
    paths = prepare(node, one)
    swapped = {
        "attempt": paths.root,
        "job": paths.root.parent,
        "attempts": paths.root.parent.parent,
    }[place]
    beyond = precious / paths.root.relative_to(swapped)
    beyond.mkdir(parents=True, exist_ok=True)
    (beyond / "thesis.txt").write_text("all of it")
    swapped.rename(swapped.with_name("aside"))
    swapped.symlink_to(precious)
    assert clean(node, one) is (place == "attempt")  # a link itself is removed
    assert (beyond / "thesis.txt").read_text() == "all of it"
    assert (precious / "thesis.txt").read_text() == "all of it"


def test_folder_elsewhere_is_never_an_attempt_folder(node: Node, precious: Path) -> None:
    one = request(node)
    one = replace(one, on=replace(one.on, root=str(precious)))
    assert not clean(node, one)
    assert (precious / "thesis.txt").exists()


def test_old_scratch_goes_and_young_living_or_linked_stays(node: Node, precious: Path) -> None:
    kept = {}
    for job in ("old", "young", "living", "odd"):
        paths = prepare(node, request(node, job))
        kept[job] = paths.root
        if job == "living":
            me = identity_of(os.getpid())
            assert me is not None
            paths.host.write_text(json.dumps({"socket": "/nowhere", **me.to_json()}))
        if job == "odd":
            paths.plan.unlink()
        if job != "young":
            for path in (*paths.root.glob("*.json"), paths.root):
                os.utime(path, (LONG_AGO, LONG_AGO))
    (node.paths.root / "attempts" / "linked").mkdir()
    link = node.paths.root / "attempts" / "linked" / "a1"
    link.symlink_to(precious)
    os.utime(link, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    assert node.prune() == [kept["old"]]
    assert {job for job, root in kept.items() if root.is_dir()} == {"young", "living", "odd"}
    assert (precious / "thesis.txt").exists()


def test_each_attempt_has_a_folder_that_only_its_owner_enters(node: Node) -> None:
    roots = [prepare(node, request(node, job)).root for job in ("one", "two")]
    assert len({*roots}) == 2
    assert [stat.S_IMODE(root.stat().st_mode) for root in roots] == [0o700, 0o700]


def test_link_in_place_of_a_snapshot_is_replaced(
    tmp_path: Path, node: Node, precious: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()")
    archive = tmp_path / "archive"
    packed = snapshots.pack(source, blobs_put=lambda path, _key: shutil.copy(path, archive))
    trees = snapshots.NodeSnapshots(node.paths.snapshots)
    node.paths.snapshots.mkdir()
    key = packed.digest.removeprefix("sha256:")
    (node.paths.snapshots / key).symlink_to(precious)
    tree = trees.ensure(packed.digest, lambda: archive)
    assert not tree.is_symlink()
    assert (tree / "train.py").exists()
    assert (precious / "thesis.txt").exists()


def test_stopping_a_target_removes_links_but_not_their_targets(
    own_home: Path, precious: Path
) -> None:
    place = stopping.TargetLocation("local", own_home)
    place.paths.root.mkdir(parents=True)
    runtime = runtime_dir(own_home)
    (runtime / "link.sock").symlink_to(precious / "thesis.txt")
    (runtime / "folder").symlink_to(precious)
    place.paths.log.symlink_to(precious)
    place.paths.head.symlink_to(precious / "thesis.txt")
    ray_folder = local_head.ray_folder(own_home)
    ray_folder.parent.mkdir(parents=True, exist_ok=True)
    ray_folder.symlink_to(precious)
    try:
        stopping.stop_head(place, say=lambda _text: None)
        assert not (runtime / "link.sock").is_symlink()
        assert not place.paths.head.is_symlink()
        assert (precious / "thesis.txt").read_text() == "all of it"
    finally:
        ray_folder.unlink(missing_ok=True)
