"""A real target notifies a receiver that a job has ended."""

from __future__ import annotations

import pytest

from tests.faults.test_notifications import Receiver
from tests.support.jobs import Jobs, until

pytestmark = pytest.mark.ray


def test_target_notifies_that_a_job_has_ended(jobs: Jobs) -> None:
    receiver = Receiver()
    try:
        job = jobs.submit("print('done')", notify=(receiver.address,))
        jobs.wait(job)
        until(lambda: receiver.got, "the receiver is notified")
        ((_, _, body),) = receiver.got
        assert (body["id"], body["state"]) == (job.id, "Completed")
    finally:
        receiver.close()
