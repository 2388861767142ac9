"""Ends an attempt (ask, wait, kill, prove) and composes its exit record."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Iterable, Optional, Sequence, Tuple

from rayjobs.injob.exit_record import ExitRecord, Leftovers, PidsLimit, UsageRecord
from rayjobs.injob.identity import ProcessStat, send_signal
from rayjobs.injob.memory import MemoryLimit, remove_cgroups_of
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.rank_stack import RankStack
from rayjobs.injob.ranks import Rank
from rayjobs.injob.text import size_text
from rayjobs.injob.tree import Tree, as_remaining

# Helpers such as the multiprocessing resource tracker end by themselves after their parent.
_ALONE_S = 0.25
_LEFTOVER_GRACE_S = 2.0
_PROOF_S = 15.0
_FULL_BYTES = 256 * 1024


class Ending:
    """The end of an attempt.

    The first cause decides the outcome; later causes only shorten the grace period.

    SIGTERM first goes only to the ranks: their helpers (data loader workers) must not die while a
    script saves its state. Processes that outlive the ranks get SIGTERM next; then the rest is
    killed.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        ranks: Sequence[Rank],
        *,
        tree: Tree,
        memory: MemoryLimit,
        is_leaving: Callable[[], bool],
        keep_outcome: Callable[[], None],
    ) -> None:
        """Prepare the end of the processes in `tree`; `begin` starts it.

        Args:
            ranks: The ranks forked so far; the list grows.
            is_leaving: Tells, once all ranks have ended, whether their helpers may still end by
                themselves.
            keep_outcome: Called when the ranks have ended, before their remaining processes are
                killed.
        """
        self._plan = plan
        self._ranks = ranks
        self._tree = tree
        self._memory = memory
        self._is_leaving = is_leaving
        self._keep_outcome = keep_outcome
        self.outcome: Optional[Outcome] = None
        self.reason = ""
        self.end_reason: Optional[EndReason] = None
        self.disk_full = False  # when a rank failed
        self.out_of_files = False  # the host cannot start the ranks: too many files are open
        self.first_failed: int | None = None
        self.is_over = False
        self.is_consequence = False  # of an event on another node
        self._kill_at = 0.0
        self._alone_until: float | None = None
        self._leftovers_until: float | None = None
        self._proof_until: float | None = None
        self._killed: set[int] = set()
        self._remaining: list[ProcessStat] = []
        self._is_unproven = False

    @property
    def has_begun(self) -> bool:
        """Whether the attempt is being ended."""
        return self.outcome is not None

    def begin(
        self,
        outcome: Outcome,
        reason: str,
        *,
        grace_s: float | None = None,
        end_reason: Optional[EndReason] = None,
    ) -> None:
        """Begin the end; if it has already begun, only shorten its grace period. Idempotent."""
        grace = self._plan.grace_s if grace_s is None else max(grace_s, 0.0)
        kill_at = time.monotonic() + grace
        if self.has_begun:
            if grace_s is not None:
                self._kill_at = min(self._kill_at, kill_at)
            return
        self.outcome, self.reason, self._kill_at = outcome, reason, kill_at
        self.end_reason = end_reason
        if grace <= 0:
            return  # killed at once: only some processes would handle a SIGTERM sent just before
        for rank in self._ranks:
            if not rank.has_ended:
                self._ask_rank(rank)

    def begin_with_failure(self, failed: list[Rank]) -> None:
        """Begin the end because ranks have failed; the reason names the one that ended first."""
        first = min(failed, key=_order_of_failure)
        self.first_failed = first.plan.rank
        if first.never_starts:
            self.begin(Outcome.NOT_STARTABLE, first.setup_problem)
            return
        if first.setup_problem:
            text = f"rank {first.plan.rank} cannot be set up: {first.setup_problem}"
            self.begin(Outcome.HOST_ERROR, text)
            return
        over = [rank for rank in failed if self._was_over_memory(rank)]
        if over:
            for rank in over:
                rank.out_of_memory = True
            self.first_failed = over[0].plan.rank
            self.begin(Outcome.OUT_OF_MEMORY, self._memory_text(over[0].plan.rank))
            return
        self.disk_full = _is_full(self._plan.root)
        self.begin(Outcome.FAILED, self._failure_text(first))

    def begin_over_memory(self) -> None:
        """Begin the end because the host's memory watch has killed a process of the tree."""
        victim = self._memory.killed_by_watch
        rank = self._rank_of(victim) if victim is not None else None
        if rank is not None:
            rank.out_of_memory = True
            self.first_failed = rank.plan.rank
        self.begin(Outcome.OUT_OF_MEMORY, self._memory_text(self.first_failed))

    def _rank_of(self, pid: int) -> Rank | None:
        ranks = self._ranks
        for rank in ranks:
            if rank.identity.pid == pid:
                return rank
        return ranks[0] if len(ranks) == 1 else None

    def _was_over_memory(self, rank: Rank) -> bool:
        # SIGKILL alone proves nothing; only a kill that the attempt's own limit has counted does. A
        # rank that failed because such a kill hit one of its helpers is also out of memory.
        return self._memory.was_exceeded() and (
            rank.signal == signal.SIGKILL or len(self._ranks) == 1
        )

    def _memory_text(self, rank: int | None) -> str:
        limit = size_text(self._plan.memory_bytes or 0)
        who = "a process of the attempt" if rank is None else f"rank {rank}"
        return (
            f"{who} was killed: the attempt exceeded the job's memory limit of {limit}; "
            "raise the limit or use less (smaller batches, fewer data loader workers)"
        )

    def _failure_text(self, rank: Rank) -> str:
        if rank.signal is not None:
            try:
                name = signal.Signals(rank.signal).name
            except ValueError:
                name = f"signal {rank.signal}"
            text = f"rank {rank.plan.rank} was killed by {name}"
        else:
            text = f"rank {rank.plan.rank} ended with exit code {rank.exit_code}"
        if self.disk_full:
            text += "; the disk that holds the attempt's files is full (ENOSPC)"
        return text

    def _ask_rank(self, rank: Rank) -> None:
        try:
            send_signal(rank.identity, signal.SIGTERM)
        except PermissionError:
            pass  # it now belongs to another user: the other ranks are asked nevertheless
        if self._plan.kind == "command":
            # A shell does not forward signals to its children; a terminal signals all of them.
            children = [
                stat
                for stat in self._tree.members()
                if stat.session == rank.identity.pid and stat.pid != rank.identity.pid
            ]
            self._tree.signal(children, signal.SIGTERM)

    def advance(self) -> None:
        """Do what is due now; sets `is_over` once nothing is left or the rest cannot be ended."""
        now = time.monotonic()
        if any(not rank.has_ended for rank in self._ranks) and now < self._kill_at:
            return
        if self._is_leaving():
            return
        if self._leftovers_until is None:
            if self._is_empty():
                return
            if self._alone_until is None:
                self._alone_until = now + _ALONE_S
                self._keep_outcome()
            if now < min(self._alone_until, self._kill_at):
                return
            self._leftovers_until = min(self._kill_at, now + _LEFTOVER_GRACE_S)
            self._note(self._ask_leftovers())
        if now < self._leftovers_until:
            if self._tree.is_empty_quickly():
                self._is_empty()
            return
        if self._proof_until is None:
            self._proof_until = now + _PROOF_S
        self._note(self._tree.kill())
        if not self._is_empty() and now > self._proof_until:
            self._remaining = self._tree.members()
            self.is_over = True

    def _ask_leftovers(self) -> list[ProcessStat]:
        members = self._tree.members()
        ranks = {rank.identity.pid for rank in self._ranks}
        leftovers = [stat for stat in members if stat.pid not in ranks]
        self._tree.signal(leftovers, signal.SIGTERM)
        return leftovers

    def _note(self, members: Iterable[ProcessStat]) -> None:
        ranks = {rank.identity.pid for rank in self._ranks}
        self._killed.update(stat.pid for stat in members if stat.pid not in ranks)

    def _is_empty(self) -> bool:
        if any(not rank.has_ended for rank in self._ranks):
            return False
        if not self._tree.is_empty_quickly() or self._tree.members():
            return False
        self.is_over = True
        return True

    def note_remaining(self) -> None:
        """Record the processes that are left; if they cannot be listed, no end is proven."""
        try:
            self._remaining = self._tree.members()
        except OSError:
            self._is_unproven = True

    def remove_cgroups(self) -> None:
        """Remove the cgroups of the tree, unless processes may remain in them."""
        if not self._remaining and not self._is_unproven:
            remove_cgroups_of(self._plan.marker)

    def as_record(
        self,
        *,
        started_at: float,
        duration_s: float,
        processes: PidsLimit,
        cold: str | None,
        usage: UsageRecord | None,
        stacks: Tuple[RankStack, ...],
    ) -> ExitRecord:
        """Return the exit record as of now; changes nothing."""
        plan = self._plan
        return ExitRecord(
            job=plan.job,
            attempt=plan.attempt,
            node=plan.node,
            marker=plan.marker,
            started_at=started_at,
            ended_at=time.time(),
            duration_s=duration_s,
            outcome=self.outcome or Outcome.HOST_ERROR,
            reason=self.reason,
            end_reason=self.end_reason,
            is_consequence=self.is_consequence,
            ranks=tuple(rank.as_record() for rank in self._ranks),
            first_failed_rank=self.first_failed,
            leftovers=Leftovers(
                killed=len(self._killed),
                proven_dead=not self._remaining and not self._is_unproven,
                remaining=as_remaining(self._remaining),
            ),
            tree=self._tree.kind,
            memory=self._memory.as_record(),
            pids=processes,
            cold=cold,
            usage=usage,
            stacks=stacks,
            disk_full=self.disk_full,
            out_of_files=self.out_of_files,
        )


def _order_of_failure(rank: Rank) -> tuple[float, bool, int]:
    # Among ranks that are found dead together, one that a signal ended is the likelier cause.
    return (rank.ended_at or 0.0, rank.signal is None, rank.plan.rank)


def _is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
