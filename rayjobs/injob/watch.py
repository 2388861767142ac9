"""Watches an attempt host's lease, and detects stalled ranks."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

from rayjobs.injob import stacks
from rayjobs.injob.answers import Answer
from rayjobs.injob.ending import Ending
from rayjobs.injob.host_messages import HostRequest, HostStacks, LeaseAnswer
from rayjobs.injob.lease import Lease
from rayjobs.injob.outcomes import Outcome
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.rank_stack import RankStack
from rayjobs.injob.ranks import Rank
from rayjobs.injob.stall import StallWatch


class Watch:
    """The lease and stall clocks of one attempt on one node."""

    def __init__(self, plan: LaunchPlan, ranks: Sequence[Rank], ending: Ending) -> None:
        """Start the lease's clock; `found` will hold the stacks of stalled ranks."""
        self._plan = plan
        self._ranks = ranks
        self._ending = ending
        self.lease = Lease.of(plan.lease_s, plan.raylet, plan.lease_since_s)
        self.stall: Optional[StallWatch] = None
        if plan.stall_timeout_s is not None:
            self.stall = StallWatch(plan.stall_timeout_s, is_alone=plan.node_count == 1)
        self.found: Tuple[RankStack, ...] = ()

    def check_lease(self) -> None:
        """Begin the attempt's end if its lease is over, or shorten the grace period of its end."""
        why = self.lease.why_over()
        if why is not None:
            grace_s = self.lease.end_grace_s(self._plan.grace_s)
            self._ending.begin(Outcome.LEASE_LOST, why, grace_s=grace_s)

    def look(self) -> None:
        """Begin the attempt's end if it has stalled."""
        if self.stall is None:
            return
        for rank in self._ranks:
            if not rank.has_ended:
                metrics = os.path.join(self._plan.root, "metrics", f"rank-{rank.plan.rank}.jsonl")
                self.stall.add(rank.plan.rank, rank.identity, rank.log.path, metrics)
        self.stall.look()
        why = self.stall.why_stalled()
        if why is not None:
            self.end_stalled(why)

    def end_stalled(self, why: str) -> None:
        """Dump the stacks of every rank, then begin the end of the attempt. Idempotent."""
        if self._ending.has_begun:
            return
        self.found = tuple(one.as_record() for one in self._dump_all())
        odd, how = stacks.odd_ones(self.found)
        if odd and self._plan.node_count == 1:
            why += f"; {stacks.named(odd, how)}"
        self._ending.begin(Outcome.STALLED, why)

    def _dump_all(self) -> List[stacks.Dump]:
        """Dump every living rank, also to the attempt's logs; a full disk is ignored."""
        dumps = []
        for rank in self._ranks:
            if rank.has_ended:
                continue
            if self.lease.why_over() is not None:
                break  # each dump may take ten seconds, and the ranks must end in time
            file = self._plan.stacks_of(rank.plan.rank)
            dump = stacks.dump(rank.plan.rank, rank.identity, file)
            if dump is not None:
                dumps.append(dump)
        folder = os.path.join(self._plan.work, "logs", "stacks")
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        for dump in dumps:
            try:
                os.makedirs(folder, exist_ok=True)
                path = os.path.join(folder, f"rank-{dump.rank}-{at}.txt")
                with open(path, "w", encoding="utf-8") as target:
                    target.write(dump.text)
            except OSError:
                break
        return dumps

    def answer(self, request: HostRequest) -> Optional[Answer]:
        """Answer requests about leases and stalls; None for other requests."""
        if request.op == "lease":
            stamp = self.lease.renew(request.stamp)
            silent_s = None if self.stall is None else self.stall.silent_s
            return LeaseAnswer(stamp=stamp, silent_s=silent_s)
        if request.op == "stacks":
            dumps = self._dump_all()
            return HostStacks(ranks=tuple(replace(one.as_record(), text=one.text) for one in dumps))
        return None
