"""What a host watches in addition to its ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.injob import stacks, watch
from rayjobs.injob.host_messages import HostRequest, HostStacks
from rayjobs.injob.lease import Lease, boot_clock_s


def test_dumps_of_many_ranks_end_with_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [
        SimpleNamespace(has_ended=False, plan=SimpleNamespace(rank=number), identity=None)
        for number in range(8)
    ]
    plan: Any = SimpleNamespace(
        lease_s=90.0,
        raylet=None,
        lease_since_s=None,
        stall_timeout_s=None,
        node_count=1,
        work=str(tmp_path),
        stacks_of=lambda rank: "",
    )
    looking = watch.Watch(plan, ranks, SimpleNamespace())  # type: ignore[arg-type]
    dumped = []

    def dump(rank: int, identity: object, file: str) -> stacks.Dump:
        dumped.append(rank)
        if rank == 2:  # 61 of the 90 s have passed without a renewal
            looking.lease = Lease(90.0, since_s=boot_clock_s() - 61.0)
        return stacks.Dump(rank, "S", "py-spy", "somewhere")

    monkeypatch.setattr(stacks, "dump", dump)
    answer = looking.answer(HostRequest("stacks"))
    assert isinstance(answer, HostStacks)
    assert dumped == [0, 1, 2] == [one.rank for one in answer.ranks]
