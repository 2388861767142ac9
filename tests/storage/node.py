"""A node's folder for a test, and a check that no mount of the test remains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rayjobs.datastore import mounts
from rayjobs.datastore.materialise import mounts_root
from rayjobs.datastore.mountfiles import generations, mount_points

DEADLINE_S = 150.0


def wait_for(fact: Callable[[], bool], what: str) -> None:
    """Wait until `fact` holds; fail if it does not in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def node_folder(root: Path) -> Iterator[Path]:
    """Lend `root` to a test; afterwards nothing may remain mounted below it."""
    yield root

    def is_free() -> bool:
        return not [point for point in mount_points() if point.startswith(f"{root}/")]

    try:
        wait_for(is_free, "the unmounting of every mount of this test")
    except AssertionError:
        # The test has failed; its leftovers must not remain on the machine.
        for mount in mounts_root(root).iterdir():
            for folder in list(generations(mount)):
                for token in folder.users():
                    mounts.release(folder.folder, token)
        mounts.reap(mounts_root(root))
        raise
