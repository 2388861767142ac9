"""Finds out which containment works on a node, by one trial in a separate process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading

from rayjobs.core.text import duration_text
from rayjobs.injob import namespace
from rayjobs.injob.tree import CGROUP, NAMESPACE, SCAN
from rayjobs.target.node_settings import AUTO

log = logging.getLogger(__name__)

PROBE_S = 60.0


class NodeContainment:
    """The containment levels of one node, the best first. Thread-safe."""

    def __init__(self, setting: str) -> None:
        """Use the containment that `NodeSettings.containment` sets."""
        self._setting = setting
        self._lock = threading.Lock()
        self._levels: tuple[str, ...] | None = None if setting == AUTO else (setting,)

    def levels(self) -> tuple[str, ...]:
        """Return the value of a plan's `containment`. Blocks briefly at its first use."""
        with self._lock:
            if self._levels is None:
                refused = why_no_namespace()
                if refused:
                    log.info("attempts run without a PID namespace: %s", refused)
                self._levels = (CGROUP, SCAN) if refused else (CGROUP, NAMESPACE, SCAN)
            return self._levels


def why_no_namespace() -> str:
    """Return why an attempt cannot have a PID namespace here; empty if it can. Blocks."""
    # In a separate process: a process that makes a namespace can start no more threads.
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-E", str(namespace.__file__)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
        return namespace.NamespaceProbe.from_json(json.loads(done.stdout)).why
    except subprocess.TimeoutExpired:
        return f"the trial did not end within {duration_text(PROBE_S)}"
    except (OSError, ValueError) as error:
        # The trial itself failed, which says nothing about the machine.
        log.warning("PID namespaces could not be tried: %r", error)
        return f"it could not be tried: {error!r}"
