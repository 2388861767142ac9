"""A store that other machines could open at the same time causes a warning."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rayjobs.store.filesystem import file_system_of, warn_if_shared

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:5 / /proc rw - proc proc rw
40 22 0:50 / /home rw,relatime shared:20 - nfs4 server:/home rw,vers=4.2
41 40 8:2 / /home/alice/local\040disk rw - xfs /dev/sdb rw
42 22 0:51 / /mnt/share rw - fuse.glusterfs volume rw
43 22 0:52 / /twice rw - nfs server:/twice rw
44 22 0:53 / /twice rw - tmpfs tmpfs rw
a line of another kind
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "ext4"),
        ("/home", "nfs4"),
        ("/home/alice/.rayjobs", "nfs4"),
        ("/homes", "ext4"),
        ("/home/alice/local disk/w", "xfs"),
        ("/mnt/share/w", "glusterfs"),
        ("/twice/w", "tmpfs"),
    ],
)
def test_the_nearest_and_latest_mount_counts(mounts: Path, path: str, kind: str) -> None:
    assert file_system_of(Path(path), mounts=mounts) == kind


def test_only_a_shared_filesystem_causes_a_warning(
    mounts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_shared(Path("/data/store.db"), mounts=mounts)
        warn_if_shared(Path("/data/store.db"), mounts=mounts / "absent")
        assert caplog.messages == []
        warn_if_shared(Path("/home/alice/store.db"), mounts=mounts)
    (message,) = caplog.messages
    assert "/home/alice/store.db is on a network file system (nfs4)" in message
    assert "RAYJOBS_WORKSPACE" in message


def test_filesystem_of_this_machine_is_detected(tmp_path: Path) -> None:
    assert file_system_of(tmp_path) != ""
