"""Which job a name means for `cancel`, where several jobs have it."""

from __future__ import annotations

import rayjobs
from tests.unit.cli.conftest import Queue, Terminal
from tests.unit.cli.fake_target import target


def test_a_part_of_several_ids_asks_for_more_of_one(queue: Queue, terminal: Terminal) -> None:
    first, second = queue.submit(), queue.submit()
    queue.finish(queue.start(first))
    done = terminal.type("cancel", "mnist_")
    assert (done.code, second.id in done.err) == (2, True)
    assert "'mnist_' names 2 jobs; give more of the id, or a name:" in done.err


def test_a_name_cancels_the_only_job_that_has_not_ended(queue: Queue, terminal: Terminal) -> None:
    """A rerun of a job has the job's name, with a number for display."""
    first = queue.completed("proj")
    with target({"ok": True, "version": rayjobs.__version__}):
        again = terminal.type("rerun", "-q", "proj").out.strip()
        done = terminal.type("cancel", "proj")
        assert (done.code, done.out) == (0, f"{again}: Canceled\n")
        assert f"proj: of 2 jobs, only proj-1 ({again}) has not ended" in done.err
        done = terminal.type("cancel", "proj")
        assert (done.code, "'proj' names 2 jobs" in done.err, first.id in done.err) == (
            2,
            True,
            True,
        )
        for _ in range(2):
            assert terminal.type("rerun", "-q", "proj-1").code == 0
        assert "'proj' names 4 jobs" in terminal.type("cancel", "proj").err
