"""The allocation of one attempt, which is freed or released at its end."""

from __future__ import annotations

from collections.abc import Sequence

from rayjobs.engine.allocations import Allocations, KnownAllocation
from rayjobs.engine.attempt.nodes import NodeOfAttempt
from rayjobs.policy import Shape


class AttemptAllocation:
    """The allocation that an attempt uses until its end is recorded."""

    def __init__(self, allocations: Allocations, allocation: KnownAllocation | None) -> None:
        """Use an allocation of `allocations`.

        Args:
            allocation: The attempt's allocation; None: it no longer exists.
        """
        self._allocations = allocations
        self._allocation = allocation
        self._is_given_back = allocation is None

    @property
    def name(self) -> str:
        """Its name, which is also that of its placement group."""
        return "" if self._allocation is None else self._allocation.name

    @property
    def shape(self) -> Shape:
        """The resources that it reserves."""
        return Shape() if self._allocation is None else self._allocation.shape

    @property
    def nodes(self) -> tuple[str, ...]:
        """The ids of its nodes, one for each bundle."""
        return () if self._allocation is None else self._allocation.nodes

    @property
    def gpus(self) -> tuple[tuple[str, ...], ...]:
        """The ids of its GPUs per bundle; empty until known."""
        return () if self._allocation is None else self._allocation.gpus

    @property
    def is_growing(self) -> bool:
        """Whether its placement group waits for nodes to start."""
        return self._allocation is not None and self._allocation.growing

    @property
    def is_given_back(self) -> bool:
        """Whether the attempt has freed or released it."""
        return self._is_given_back

    def refresh(self) -> None:
        """Update where the bundles of a growing group would be placed now."""
        if self._allocation is not None and self._allocation.growing:
            current = {one.name: one for one in self._allocations.all}
            self._allocation = current.get(self._allocation.name, self._allocation)

    async def create(self) -> None:
        """Make its placement group. Raises NotPlacedError, NotGrownError."""
        assert self._allocation is not None
        self._allocation = await self._allocations.create(self._allocation)

    async def release(self) -> None:
        """Remove its placement group."""
        self._is_given_back = True
        if self._allocation is not None:
            await self._allocations.release(self._allocation)

    async def give_back(
        self, *, job: str, attempt: int, proven: bool, suspects: Sequence[NodeOfAttempt] = ()
    ) -> None:
        """Free it for other jobs, after the attempt's end was recorded.

        Args:
            proven: All processes of the attempt are proven dead; else it is drained.
            suspects: The nodes on which the attempt's processes may be alive.
        """
        self._is_given_back = True
        if self._allocation is not None:
            await self._allocations.give_back(
                self._allocation, attempt=attempt, job=job, proven=proven, suspects=suspects
            )

    def forget(self) -> None:
        """Leave it to another target actor that has taken it over."""
        if self._allocation is not None:
            self._allocations.forget(self._allocation)
