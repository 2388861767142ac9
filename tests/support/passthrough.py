"""A FUSE file system that shows another folder; stop its process, and its calls do not return.

Run as `python -m tests.support.passthrough SOURCE MOUNTED`; see `mounted`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mfusepy

READY_S = 30.0


class Passthrough(mfusepy.Operations):
    """Answers from the folder `source`; nothing can be written."""

    def __init__(self, source: str) -> None:
        self.source = source

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        seen = os.lstat(self.source + path)
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_mtime", "st_ctime")
        return {name: getattr(seen, name) for name in names}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self.source + path)]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with open(self.source + path, "rb") as file:
            file.seek(offset)
            return file.read(size)


@contextlib.contextmanager
def mounted(source: Path, at: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Show `source` at the folder `at` while this is open; yields the process that answers."""
    at.mkdir()
    command = [sys.executable, "-m", "tests.support.passthrough", str(source), str(at)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        end_s = time.monotonic() + READY_S
        while not at.is_mount():
            assert process.poll() is None and time.monotonic() < end_s, "the mount did not appear"
            time.sleep(0.01)
        yield process
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(at)], check=False)
        process.kill()
        process.wait()


if __name__ == "__main__":
    mfusepy.FUSE(
        Passthrough(sys.argv[1]), sys.argv[2], foreground=True, ro=True,
        attr_timeout=0, entry_timeout=0,
    )  # fmt: skip
