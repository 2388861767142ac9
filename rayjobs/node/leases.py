"""The leases of starting attempt hosts, until the hosts maintain them themselves.

A request to start a host may arrive late, at a node that was frozen or unreachable before.
By then the target may have given up the node, and the job may run elsewhere. So the lease counts
from a stamp of the node's own clock that is older than the request, and not from the host's start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.injob.lease import Lease
from rayjobs.injob.plan import LaunchPlan


class StartingLeases:
    """The leases of a node's starting hosts, by the attempts' markers."""

    def __init__(self) -> None:
        """Start without leases."""
        self._leases: dict[str, Lease] = {}

    @contextmanager
    def starting(self, plan: LaunchPlan) -> Iterator[Lease]:
        """Keep the lease of a plan's host, which starts within this block."""
        lease = Lease(plan.lease_s, since_s=plan.lease_since_s)
        self._leases[plan.marker] = lease
        try:
            yield lease
        finally:
            self._leases.pop(plan.marker, None)

    def renew(self, marker: str, stamp: float | None) -> float | None:
        """Renew a lease as its host would; return the next stamp, or None if there is no lease."""
        lease = self._leases.get(marker)
        return None if lease is None else lease.renew(stamp)


def require(lease: Lease) -> None:
    """Check that a host may start.

    Raises:
        PrepareError: class ``system``: its lease has expired.
    """
    why = lease.why_over()
    if why is not None:
        raise PrepareError(
            f"the attempt's host was not started: {why}", failure_class=FailureClass.SYSTEM
        )
