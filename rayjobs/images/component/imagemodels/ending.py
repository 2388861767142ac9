"""Ends a job's script on a user error with one line instead of a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from .errors import ImageModelError


@contextlib.contextmanager
def ends_clearly() -> Iterator[None]:
    """Print an `ImageModelError` as `Name: message`, and exit with code 1.

    The destructor of a process group would wait for the other ranks, so a rank exits without it.
    """
    try:
        yield
    except ImageModelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            os._exit(1)
        raise SystemExit(1) from None
