"""How a job's script ends when something was given wrong: one line, no traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from .errors import ImageModelError


@contextlib.contextmanager
def ends_clearly() -> Iterator[None]:
    """Print an error of ours as `Name: what to do`, and end with exit code 1.

    A process group whose other processes wait would hang in its destructor, so the process leaves
    without it.
    """
    try:
        yield
    except ImageModelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            os._exit(1)
        raise SystemExit(1) from None
