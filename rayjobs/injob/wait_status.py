"""Reads from a wait status how a process ended."""

from __future__ import annotations

import os


class WaitStatus:
    """Mixin for classes with a process's wait status.

    Attributes:
        status: The value from `os.wait4`; None while the process runs.
    """

    status: int | None

    @property
    def has_ended(self) -> bool:
        """Whether its wait status is known."""
        return self.status is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs or when a signal ended it."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> int | None:
        """The signal that ended it, or None."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)
