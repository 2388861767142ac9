"""Caches the facts of targets for a second, since all submits of a burst need the same ones."""

from __future__ import annotations

import threading
import time

from rayjobs.submit.submitting import TargetFacts, facts_of
from rayjobs.workspace.folder import OpenWorkspace

KNOWN_FOR_S = 1.0
MOST_KNOWN = 1000


class KnownTargets:
    """Facts of targets, looked up at most once a second. Thread-safe."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, TargetFacts]] = {}

    def of(self, target: str) -> TargetFacts:
        """Return the facts of a target; problems are not cached, so that they can disappear."""
        with self._lock:
            at_s, found = self._known.get(target, (float("-inf"), None))
        if found is not None and time.monotonic() - at_s < KNOWN_FOR_S:
            return found
        now_s = time.monotonic()
        found = facts_of(self._workspace, target)
        if not found.problems:
            with self._lock:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[target] = (now_s, found)
        return found
