"""Finds out what works on a node, by a probe in a separate process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Generic, TypeVar

from rayjobs.core.text import duration_text
from rayjobs.injob.messages import Message

LIMIT_S = 60.0
AGAIN_S = 60.0  # how long the result of a failed probe is used
log = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)
Found = TypeVar("Found")


class ProbeError(Exception):
    """A probe gave no answer. This says nothing about the machine."""


def run(program: ModuleType, answer: type[Answer], *arguments: str) -> Answer:
    """Run a module of `rayjobs.injob` as a program; return the message that it prints. Blocks.

    It runs in a separate process: a process that makes a namespace can start no more threads.

    Raises:
        ProbeError: It did not end within `LIMIT_S`, did not start, or printed something else.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-E", str(program.__file__), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        return answer.from_json(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        raise ProbeError(f"the trial did not end within {duration_text(LIMIT_S)}") from None
    except (OSError, ValueError) as error:
        raise ProbeError(f"the trial failed: {error!r}") from error


class ProbeResult(Generic[Found]):
    """What a probe found. Thread-safe.

    An answer is kept for good. After a failed probe, the next one is made after `AGAIN_S`.
    """

    def __init__(self, probe: Callable[[], Found], *, failed: Callable[[str], Found]) -> None:
        """Probe at the first use.

        Args:
            probe: Returns what it found; raises ProbeError.
            failed: Returns what to assume after a failed probe, from its error.
        """
        self._probe = probe
        self._failed = failed
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._again_s: float | None = None  # None: the answer is kept

    def get(self) -> Found:
        """Return what was found. Blocks while a probe runs."""
        with self._lock:
            is_due = self._again_s is not None and time.monotonic() >= self._again_s
            if self._found is None or is_due:
                try:
                    self._found, self._again_s = self._probe(), None
                except ProbeError as error:
                    log.warning("%s; it is repeated after %s", error, duration_text(AGAIN_S))
                    self._found = self._failed(str(error))
                    self._again_s = time.monotonic() + AGAIN_S
            return self._found
