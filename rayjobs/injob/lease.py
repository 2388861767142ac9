"""An attempt host's lease: its target renews it, and it expires by the host's own clock.

An unreachable host must end its ranks before its job starts elsewhere. So the target waits for the
whole lease, and the host ends its tree after two thirds of the lease.
"""

from __future__ import annotations

import time

from rayjobs.injob.identity import Identity, is_alive
from rayjobs.injob.text import duration_text

# Share of the lease after which a host without renewal ends its tree; the rest is for that end.
HOST_SHARE = 2.0 / 3.0
# Seconds from SIGTERM to SIGKILL when a lease is over. They are few, since no agent can store a
# checkpoint then. A node that was frozen longer than the whole lease gets no grace period: its job
# may already run elsewhere.
LOST_GRACE_S = 2.0


def boot_clock_s() -> float:
    """Seconds on a clock that cannot be set and that includes time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """How long the host may continue; without a lease, there is no limit.

    Each renewal carries the stamp of the host's last answer, and the lease counts from that stamp,
    not from the renewal's arrival. A renewal delayed by a frozen agent or a slow network therefore
    cannot extend a lease that its sender has given up.
    """

    def __init__(
        self,
        lease_s: float | None,
        raylet: Identity | None = None,
        since_s: float | None = None,
    ) -> None:
        """Grant a first lease.

        Args:
            lease_s: Seconds after which the target assumes that the host has ended; None: no lease;
                the target proves an end in other ways.
            raylet: Ray's process on this node: once it has ended, the lease is over.
            since_s: Its start, on `boot_clock_s`; None: now.
        """
        now_s = boot_clock_s()
        self.lease_s = lease_s
        self._raylet = raylet
        self._since_s = now_s if since_s is None else min(since_s, now_s)

    @classmethod
    def of(cls, lease_s: float | None, raylet: Identity | None, since_s: float | None) -> Lease:
        """Return the lease that a plan's fields describe."""
        return cls(lease_s, raylet, since_s)

    def renew(self, stamp_s: float | None) -> float:
        """Prolong the lease to count from `stamp_s`; return the stamp for the next renewal.

        A stamp that is older than the newest known one, or that was never issued, changes nothing.
        """
        now_s = boot_clock_s()
        if stamp_s is not None and self._since_s < stamp_s <= now_s:
            self._since_s = stamp_s
        return now_s

    @property
    def since_s(self) -> float:
        """Its current start, on `boot_clock_s`."""
        return self._since_s

    @property
    def left_s(self) -> float | None:
        """Seconds until the host ends its tree by itself; None without a lease."""
        if self.lease_s is None:
            return None
        return self._since_s + self.lease_s * HOST_SHARE - boot_clock_s()

    def end_grace_s(self, grace_s: float) -> float:
        """Return the grace period of the ranks once the lease is over, in seconds.

        Args:
            grace_s: Their job's own grace period, an upper bound.
        """
        left_s = self.left_s
        if left_s is None or self.lease_s is None:
            return grace_s
        whole_left_s = left_s + self.lease_s * (1.0 - HOST_SHARE)
        return max(0.0, min(grace_s, LOST_GRACE_S, whole_left_s - LOST_GRACE_S))

    def why_over(self) -> str | None:
        """Return why the host must end its tree now; None while it may continue."""
        left_s = self.left_s
        if left_s is None or self.lease_s is None:
            return None
        if left_s <= 0:
            return (
                f"its target did not renew the lease of {duration_text(self.lease_s)} for "
                f"{duration_text(self.lease_s * HOST_SHARE)}: the node was cut off, or frozen"
            )
        if self._raylet is not None and not is_alive(self._raylet):
            return "Ray's process on its node (raylet) has ended, so the node is lost to its target"
        return None
