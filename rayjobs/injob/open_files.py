"""The limit of open files: raised for rayjobs' processes, restored for the user's."""

from __future__ import annotations

import errno
import os
import resource
import time
from typing import Callable, Optional, TypeVar

Result = TypeVar("Result")

# The original soft limit, for the processes of jobs.
SOFT_VARIABLE = "RAYJOBS_SOFT_FILES"
# Some programs iterate over every possible descriptor.
MOST = 1 << 20
ERRORS = (errno.EMFILE, errno.ENFILE)
PATIENCE_S = 10.0
PAUSE_S = 0.1


def raise_limit() -> None:
    """Raise this process's soft limit to the hard one; store the old one in the environment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.environ.setdefault(SOFT_VARIABLE, str(soft))
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def original() -> Optional[int]:
    """Return the soft limit from before `raise_limit`; None if that was not called."""
    text = os.environ.get(SOFT_VARIABLE, "")
    return int(text) if text.lstrip("-").isdigit() else None


def give_back(soft: Optional[int]) -> None:
    """Restore the user's soft limit for this process; None changes nothing."""
    if soft is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
        soft = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_exhausted(error: Optional[BaseException]) -> bool:
    """Whether an error, or one that caused it, means that the limit of open files is reached."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in ERRORS:
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def patiently(read: Callable[[], Result], patience_s: float = PATIENCE_S) -> Result:
    """Call a function; while the limit of open files is reached, retry for `patience_s` seconds.

    Raises:
        OSError: the function's own error, or the limit still holds.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return read()
        except OSError as error:
            if error.errno not in ERRORS or time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)
