"""Save a checkpoint repeatedly, killed one disk operation later each time; print what remains.

``killed_saving.py FOLDER STEP``: FOLDER/<k> gets a whole checkpoint of step 1; then a process saves
one of STEP and dies in its k-th operation (write, fsync, rename, mkdir ...), a write half done.
Prints one JSON line per k: ``{"k", "died", "found": step or null, "data"}``.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rayjobs import checkpoint

FILES = {"model.pt": b"second weights" * 50, "opt/state.bin": b"second state" * 50}
MOST = 200

count = 0
last = 0


def passed(half: Any = None) -> None:
    """Count an operation; in the last one, do half of it and die."""
    global count
    count += 1
    if count == last:
        if half is not None:
            half()
        os.kill(os.getpid(), signal.SIGKILL)


class CountedFile(io.FileIO):
    """A file without a buffer, whose writes are counted."""

    def write(self, data: Any) -> int:
        passed(lambda: io.FileIO.write(self, bytes(data)[: len(data) // 2]))
        return super().write(data)


def watch() -> None:
    """Count every disk operation of this process from now on."""
    plain_open = builtins.open

    def counted_open(path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if "w" in mode:
            passed()
            return CountedFile(path, mode.replace("b", ""))
        return plain_open(path, mode, *more, **options)

    builtins.open = counted_open  # type: ignore[assignment]
    for name in ("fsync", "rename", "mkdir", "unlink", "rmdir"):
        plain = getattr(os, name)

        def counted(*given: Any, plain: Any = plain, **options: Any) -> Any:
            passed()
            return plain(*given, **options)

        setattr(os, name, counted)


def save_and_die(folder: Path, step: int, at: int) -> None:
    global last
    last = at
    watch()
    writers = {"model.pt": FILES["model.pt"], "opt/state.bin": write_state}
    checkpoint.save(step, writers, directory=str(folder))
    os._exit(0)


def write_state(path: str) -> None:
    with open(path, "wb") as file:
        data = FILES["opt/state.bin"]
        for start in range(0, len(data), 200):
            file.write(data[start : start + 200])


def main() -> None:
    root, step = Path(sys.argv[1]), int(sys.argv[2])
    for at in range(1, MOST):
        folder = root / str(at)
        checkpoint.save(1, dict.fromkeys(FILES, b"first"), directory=str(folder))
        child = os.fork()
        if child == 0:
            save_and_die(folder, step, at)
        _, status = os.waitpid(child, 0)
        died = os.WIFSIGNALED(status)
        found = checkpoint.latest(str(folder))
        data = None
        if found is not None:
            files = {name: Path(found.file(name)).read_bytes() for name in found.names}
            data = "second" if files == FILES else "first"
            if data == "first":
                assert set(files.values()) == {b"first"}, files
        line = {"k": at, "died": died, "found": found and found.step, "data": data}
        print(json.dumps(line), flush=True)
        if not died:
            return


if __name__ == "__main__":
    main()
