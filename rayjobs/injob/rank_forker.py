"""Starts the processes of one attempt on one node; holds the state that the host's parts share."""

from __future__ import annotations

import os
import selectors
import time
from dataclasses import field
from typing import Callable, Iterable, Mapping

from rayjobs.injob import open_files
from rayjobs.injob.ending import Ending
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.memory import MemoryLimit, ProcessLimit
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import LaunchPlan, RankPlan
from rayjobs.injob.ranks import Program, Rank, WarmState, fork_rank
from rayjobs.injob.tree import Tree


@dataclass
class RankForker:
    """Forks ranks, and adds new processes to the attempt.

    Attributes:
        selector: The selector of the host's loop.
        abandon: Closes all sockets of the host in a forked process.
        ranks: The ranks forked so far; `Ending` and `Watch` share this list.
    """

    plan: LaunchPlan
    secrets: Mapping[str, str]
    warm: WarmState | None
    selector: selectors.BaseSelector
    tree: Tree
    memory: MemoryLimit
    processes: ProcessLimit
    ending: Ending
    abandon: Callable[[], None]
    ranks: list[Rank] = field(default_factory=list)

    def fork(self, items: Iterable[RankPlan]) -> Program | None:
        """Fork ranks, which then wait to be released; in such a rank, return its program."""
        for item in items:
            try:
                rank = fork_rank(
                    self.plan, item, self.secrets, self.warm, abandon=self.abandon, tree=self.tree
                )
            except OSError as error:
                self.ending.out_of_files = open_files.is_exhausted(error)
                self.ending.begin(
                    Outcome.HOST_ERROR, f"rank {item.rank} cannot be started: {error}"
                )
                return None
            if isinstance(rank, Program):
                return rank
            self.ranks.append(rank)
            self.contain(rank.identity.pid)
            os.set_blocking(rank.setup, False)
            self.selector.register(rank.setup, selectors.EVENT_READ, self._setup_reader(rank))
        return None

    def contain(self, pid: int) -> None:
        """Add a new child, which has no children yet, to the attempt's processes."""
        for holder in (self.tree, self.memory, self.processes):
            holder.add(pid)

    def let_go(self, numbers: Iterable[int]) -> None:
        """Release forked ranks, unless the attempt is ending."""
        if self.ending.has_begun:
            return
        chosen = set(numbers)
        for rank in self.ranks:
            if rank.plan.rank not in chosen:
                continue
            rank.started_at = time.time()
            try:
                os.write(rank.go, b"g")
            except BrokenPipeError:
                continue  # it died meanwhile; the loop will notice
            finally:
                os.close(rank.go)

    def _setup_reader(self, rank: Rank) -> Callable[[object], None]:
        return lambda _: self.read_setup(rank)

    def read_setup(self, rank: Rank) -> None:
        """Read what a forked rank has reported about its setup so far."""
        while rank.setup >= 0:
            before = len(rank.setup_error)
            if rank.read_setup():
                self.selector.unregister(rank.setup)
                os.close(rank.setup)
                rank.setup = -1
            elif len(rank.setup_error) == before:
                return
