"""Decides when a node's agent may leave: after some time without calls or attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayjobs.launch.hostclient import is_alive
from rayjobs.node.hosts import host_of
from rayjobs.protocol.agent import AgentLeavingError
from rayjobs.protocol.attempts import AttemptOnNode

# How long a prepared attempt waits for its launch: the other nodes may fetch much data. If the
# target died meanwhile, no launch comes.
PREPARED_S = 3600.0


class Linger:
    """An agent's current work, by its calls. For one event loop; not thread-safe."""

    def __init__(self, linger_s: float, now_s: Callable[[], float]) -> None:
        """Leave after `linger_s` seconds without work, on the clock `now_s`."""
        self._linger_s = linger_s
        self._now_s = now_s
        self._idle_since_s = now_s()
        self._calls = 0
        self._roots: dict[str, str] = {}
        self.has_left = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count one call while it lasts.

        Raises:
            AgentLeavingError: the agent is leaving; the call must not begin.
        """
        if self.has_left:
            raise AgentLeavingError("the node's agent is leaving and has not begun this")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._idle_since_s = self._now_s()

    def expect(self, on: AttemptOnNode) -> None:
        """Count an attempt on the node until it is dropped or its host has ended."""
        self._roots[on.marker] = on.root

    def drop(self, on: AttemptOnNode) -> None:
        """Stop counting an attempt: it has ended or will not be launched."""
        self._roots.pop(on.marker, None)

    def due_in_s(self) -> float:
        """Return the seconds until the next check; 0 if the agent may leave now."""
        idle_s = self._now_s() - self._idle_since_s
        if self._calls or self._has_attempt(idle_s):
            return max(self._linger_s, 0.1)
        return max(0.0, self._linger_s - idle_s)

    def _has_attempt(self, idle_s: float) -> bool:
        for root in self._roots.values():
            try:
                host = host_of(root)
                if (idle_s < PREPARED_S) if host is None else is_alive(host.identity):
                    return True
            except OSError:
                return True  # too many files are open: the next check will tell
        return False

    def leave(self) -> None:
        """Accept no more work. Call it in the same turn of the loop as `due_in_s`."""
        self.has_left = True
