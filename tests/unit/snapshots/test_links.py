"""Links: kept where they stay inside, left out with a warning where they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots.links import leaves_tree
from tests.unit.snapshots.conftest import Packer


@pytest.mark.parametrize(
    ("links", "leaving"),
    [
        ({"a": "b"}, set()),
        ({"d/a": "../b"}, set()),
        ({"a": "."}, set()),
        ({"a": ".."}, {"a"}),
        ({"a": "/etc"}, {"a"}),
        ({"a": ""}, {"a"}),
        ({"a": "x/../../b"}, {"a"}),
        ({"a": "b", "b": "a"}, {"a", "b"}),
        # Each link by itself stays inside; together they lead out.
        ({"d/up": "..", "d/out": "up/../x"}, {"d/out"}),
        ({"d/up": "..", "d/in": "up/x"}, set()),
        ({"a": "b/..", "b": "c/d"}, set()),
        ({"a": "b/../..", "b": "c/d"}, set()),
        ({"a": "b/../../..", "b": "c/d"}, {"a"}),
    ],
)
def test_a_chain_of_links_is_followed_as_the_kernel_would(
    links: dict[str, str], leaving: set[str]
) -> None:
    assert {path for path in links if leaves_tree(path, links)} == leaving


def targets(packed: Packer) -> dict[str, str]:
    return {entry.path: entry.target for entry in packed().manifest if entry.kind == "link"}


def test_links_inside_are_kept_as_links(packed: Packer, source: Path) -> None:
    (source / "lib").mkdir()
    (source / "lib" / "a.py").touch()
    (source / "relative").symlink_to("lib/a.py")
    (source / "absolute").symlink_to(source / "lib")
    (source / "lib" / "round").symlink_to(f"../../{source.name}/train.py")
    (source / "loop").symlink_to(".")
    (source / "dangling").symlink_to("nowhere")
    assert targets(packed) == {
        "relative": "lib/a.py",
        "absolute": "lib",
        "lib/round": "../train.py",
        "loop": ".",
        "dangling": "nowhere",
    }
    assert any("dangling leads to nowhere" in warning for warning in packed().warnings)


def test_links_that_lead_outside_or_loop_are_excluded_and_named(
    packed: Packer, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.py").write_text("secret")
    (source / "file").symlink_to(tmp_path / "outside.py")
    (source / "folder").symlink_to("..")
    (source / "one").symlink_to("two")
    (source / "two").symlink_to("one")
    (source / "hop").symlink_to("file")
    snapshot = packed()
    assert targets(packed) == {}
    (warning,) = snapshot.warnings
    for name in ("file", "folder", "one", "two", "hop"):
        assert f"{name} (leads" in warning


def test_an_entry_script_outside_is_an_error(packed: Packer, source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    (source / "main.py").symlink_to(tmp_path / "outside.py")
    with pytest.raises(SnapshotError, match="leads out of the folder"):
        packed(entry="main.py")


def test_a_source_directory_behind_a_link_is_the_same(packed: Packer, source: Path) -> None:
    behind = source.parent / "behind"
    behind.symlink_to(source)
    assert packed(behind).digest == packed().digest
    assert os.path.realpath(behind) == str(source)
