"""Runs a program that must not outlive its parent process, on nodes without `setpriv`.

``python -I -S tied.py PARENT PROGRAM ARGUMENT…`` becomes the program, and the kernel ends it when
PARENT ends. It is a separate script, because a process with threads cannot safely request this
from the kernel between fork and exec. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)


def main(arguments: list[str]) -> None:
    """Become the program. Exits with 127 if it cannot be started, with 1 if PARENT is gone."""
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before the request to the kernel
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.stderr.write(f"error: {program[0]} cannot be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
