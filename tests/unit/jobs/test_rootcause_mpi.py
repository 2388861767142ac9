"""The cause of an attempt's end where MPI ends all nodes once one of them has failed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

from rayjobs.injob.exit_record import ExitRecord, RankExit
from rayjobs.injob.mpi import MpiExtras
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs import rootcause


def given_up(folder: Path) -> ExitRecord:
    """Return the exit record that a host writes after MPI has given up its ranks."""
    ending = SimpleNamespace(is_consequence=False, outcome=None, reason="")

    def begin(outcome: str, reason: str) -> None:
        ending.outcome, ending.reason = outcome, reason

    ending.begin = begin
    extras = object.__new__(MpiExtras)
    extras._forker = SimpleNamespace(  # type: ignore[assignment]
        ending=ending, ranks=[], plan=SimpleNamespace(node=0, ranks=[1])
    )
    extras._launcher = None
    extras._log = str(folder / "mpi.log")
    extras._lost_at = time.monotonic() - 60.0
    extras.look_for_an_end()
    return ExitRecord(
        job="j",
        attempt=1,
        node=0,
        marker="m",
        outcome=ending.outcome,
        reason=ending.reason,
        is_consequence=ending.is_consequence,
        ended_at=100.0,
    )


def test_rank_ended_by_mpi_is_not_the_cause(tmp_path: Path) -> None:
    """The clock of its machine says that it ended first."""
    follower = given_up(tmp_path)
    assert follower.outcome is Outcome.HOST_ERROR
    failed = ExitRecord(
        job="j",
        attempt=1,
        node=1,
        marker="n",
        outcome=Outcome.FAILED,
        ranks=(RankExit(rank=3, exit_code=7, ended_at=130.0),),
        first_failed_rank=3,
        ended_at=131.0,
    )
    outcome, failure = rootcause.diagnose([follower, failed], {3: b""})
    assert outcome == "failed"
    assert failure is not None and failure.rank == 3 and failure.exit_code == 7
