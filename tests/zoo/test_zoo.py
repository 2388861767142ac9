"""Every broken script of the zoo runs for real; one line reports its root cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.injob.exit_record import ExitRecord
from rayjobs.jobs.rootcause import diagnose
from tests.conformance.hosts import Attempt, warm
from tests.zoo.broken import ZOO, Broken

__all__ = ["warm"]


def test_the_zoo_is_large_enough() -> None:
    assert len({broken.name for broken in ZOO}) == len(ZOO) >= 15


@pytest.mark.parametrize("broken", ZOO, ids=lambda broken: broken.name)
def test_the_root_cause_is_reported(broken: Broken, short_path: Path, warm: str) -> None:
    attempt = Attempt.make(
        short_path,
        broken.script,
        *broken.arguments,
        ranks=broken.ranks,
        root=short_path / "attempts" / "job" / "a1",  # as on a node: its paths are cut short
        **broken.plan,
    ).start(warm)
    record = attempt.wait()
    tails = {rank: attempt.log(rank)[-64 * 1024 :] for rank in range(broken.ranks)}
    _, failure = diagnose([ExitRecord.from_json(record)], tails)
    assert failure is not None, record
    assert broken.message in failure.message
    assert "\n" not in failure.message
    assert failure.failure_class is broken.failure_class
    assert (failure.rank, failure.exit_code, failure.signal) == (
        broken.rank,
        broken.code,
        broken.signal,
    )
    if broken.line:
        assert broken.line in failure.lines
