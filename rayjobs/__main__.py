"""The program `rayjobs`: starts and ends fast. Also ``python -m rayjobs``."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line, then end the process with its exit code."""
    # A command lives for a fraction of a second: collecting garbage meanwhile is a tenth of it.
    gc.set_threshold(200_000, 50, 100)
    # pydantic would search all installed packages for plugins, which we do not use.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from rayjobs.cli.main import run as run_command_line

        code = run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while modules were being imported, or a message was printed
        code = 130
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's teardown, after all that was registered ran.

    With threads that still work the ordinary end is taken, which waits for them.
    """
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]
    if others:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1  # what was printed did not arrive: a full disk, a closed stream
    os._exit(code)


if __name__ == "__main__":
    run()
