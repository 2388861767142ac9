"""Arrays on real Ray: one submit, its members within their limit, one end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Array, Dependency
from rayjobs.store.requests import JobFilter
from tests.support.jobs import Jobs

pytestmark = pytest.mark.ray


def test_members_know_their_index_and_the_array_ends_as_its_worst_member(jobs: Jobs) -> None:
    array = jobs.submit(
        """
        import os, sys
        from rayjobs import Run
        index = int(os.environ["RAYJOBS_ARRAY_INDEX"])
        print(os.environ["RAYJOBS_ARRAY_ID"], os.environ["RAYJOBS_ARRAY_COUNT"], sys.argv[1:])
        Run.get_context().log("index", index)
        sys.exit(3 if index == 5 else 0)
        """,
        array=Array(indices="1-5:2", limit=1),
        arguments=("--shard", "$RAYJOBS_ARRAY_INDEX"),
    )
    after = jobs.submit("print('after')", depends_on=(Dependency(job=array.id, when="any"),))
    never = jobs.submit("print('never')", depends_on=(Dependency(job=array.id),))
    ended = jobs.wait(array, JobState.FAILED)
    assert ended.failure is not None
    assert ended.failure.message.startswith("1 of 3 members failed, [5] first: rank 0 exited")
    assert ended.failure.exit_code == 3
    members = jobs.store.jobs(JobFilter(parent=array.id, newest_first=False))
    assert [member.array_index for member in members] == [1, 3, 5]
    for member in members:
        printed = f"{array.id} 3 ['--shard', '{member.array_index}']\n"
        assert jobs.log(member) == printed.encode()
        assert [point.value for point in jobs.store.metrics(member.id)] == [member.array_index]
        jobs.nothing_left(member)
    # One at a time: none got an allocation before the previous one had ended.
    for earlier, later in pairwise(members):
        assert earlier.ended_at is not None
        assert later.placed_at is not None
        assert earlier.ended_at <= later.placed_at
    jobs.wait(after, JobState.COMPLETED)
    canceled = jobs.wait(never, JobState.CANCELED)
    assert canceled.reason == f"{array.id}, which it waited for, ended as Failed"


def test_cancel_ends_running_and_waiting_members(jobs: Jobs) -> None:
    array = jobs.submit(
        "import time\nprint('up', flush=True)\ntime.sleep(600)",
        array=Array(indices="0-3", limit=1),
        grace_s=0.5,
    )
    first = jobs.store.member(array.id, 0)
    jobs.wait(first, JobState.RUNNING)
    jobs.wait_for_output(first, b"up")
    jobs.store.request_cancel(array.id)
    jobs.wait(array, JobState.CANCELED)
    assert jobs.store.member_counts([array.id]) == {array.id: {JobState.CANCELED: 4}}
    jobs.nothing_left(first)
