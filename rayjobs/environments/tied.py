"""Runs a program that must not outlive the process that started it, where `setpriv` is missing.

``python -I -S tied.py PARENT PROGRAM ARGUMENT…`` becomes the program, and the kernel ends it when
PARENT ends. It is a script of its own, since a process with threads cannot safely ask the kernel
for this between fork and exec. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)


def main(arguments: list[str]) -> None:
    """Become the program. Exits with 127 where it cannot be started, 1 where PARENT is gone."""
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before the kernel was asked
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.stderr.write(f"error: {program[0]} cannot be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
