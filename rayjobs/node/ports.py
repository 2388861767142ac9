"""Ports that a node's agent reserves for jobs until their attempt hosts bind them."""

from __future__ import annotations

import os
import time

from rayjobs.injob import master_port

FORGOTTEN_S = 600.0  # the launch that needed it never came


class HeldPorts:
    """Ports reserved here until the attempt's host reserves them itself."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, float]] = {}

    def take(self) -> int:
        """Return a free port, and reserve it.

        Raises:
            OSError: the system has none.
        """
        now_s = time.monotonic()
        for port, (_, since_s) in list(self._held.items()):
            if now_s - since_s > FORGOTTEN_S:
                self.let_go(port)
        descriptor, port = master_port.reserve()
        self._held[port] = (descriptor, now_s)
        return port

    def let_go(self, port: int | None) -> None:
        """Release a port; one that is not reserved here is ignored."""
        if port is not None and port in self._held:
            os.close(self._held.pop(port)[0])
