"""The terminal of `rayjobs exec`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

READS = """
import os
from rayjobs.cli.exec import _raw
with _raw(True):
    os.write(1, os.read(0, 100))
"""


def test_input_before_the_session_starts_is_kept() -> None:
    master, terminal = pty.openpty()
    try:
        os.write(master, b"ls\n")  # the command has not started yet
        done = subprocess.run(
            [sys.executable, "-c", READS], stdin=terminal, capture_output=True, timeout=60
        )
    finally:
        os.close(master)
        os.close(terminal)
    assert done.stdout == b"ls\n", done.stderr
