"""The messages, and their order, while a job is followed to its end."""

from __future__ import annotations

from rayjobs.cli.following import LOOK_EVERY_S, Stages, follow_logs
from rayjobs.cli.jobviews import short_id
from rayjobs.cli.screen import Screen
from rayjobs.cli.settings import Settings
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.states import JobState
from tests.unit.cli.conftest import LOG, Queue


class Recorded(Screen):
    """Records messages and output; after a stage is reported, the test's job may continue."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.seen: list[str | bytes] = []
        self.after: dict[str, object] = {}

    def note(self, text: str) -> None:
        self.seen.append(text)
        then = self.after.pop(text, None)
        if callable(then):
            then()

    def write(self, data: bytes) -> None:
        if data:
            self.seen.append(data)


def test_running_stage_is_shown_before_the_output_of_a_finished_attempt(
    queue: Queue,
) -> None:
    job = queue.start(queue.submit(), until=JobState.PREPARING)
    screen = Recorded()

    def end() -> None:
        for old, new in (
            (JobState.PREPARING, JobState.RUNNING),
            (JobState.RUNNING, JobState.FINALIZING),
        ):
            assert queue.workspace.store.move(job.id, attempt=1, old=old, new=new)
        queue.store_file(job, "azureml-logs/70_driver_log.txt", LOG)
        queue.finish(queue.workspace.store.job(job.id))

    screen.after["Preparing"] = end
    assert follow_logs(queue.workspace, job.id, screen).state is JobState.COMPLETED
    assert screen.seen == ["Preparing", "Running", LOG]


def test_output_before_the_state_change_never_reverts_a_stage(queue: Queue) -> None:
    messages: list[str] = []
    job = queue.start(queue.submit(), until=JobState.PREPARING)
    stages = Stages(queue.workspace, job.id, messages.append)
    stages.printed(1)
    stages.look()
    assert messages == ["Running"]
    queue.workspace.store.move(job.id, attempt=1, old=JobState.PREPARING, new=JobState.RUNNING)
    later = Stages(queue.workspace, job.id, messages.append)
    later.look()
    later.printed(1)
    assert messages == ["Running", "Running"]  # one message from each
    queue.finish(queue.workspace.store.job(job.id))
    over = Stages(queue.workspace, job.id, messages.append)
    over.look()
    over.printed(1)
    assert messages == ["Running", "Running"]  # none for a job that had already ended


def test_held_job_reports_once_how_to_end_the_wait(queue: Queue) -> None:
    messages: list[str] = []
    job = queue.submit()
    queue.workspace.store.hold(job.id, reason="the driver is being upgraded")
    stages = Stages(queue.workspace, job.id, messages.append)
    for _ in range(2):
        stages._looked_s -= LOOK_EVERY_S
        stages.look()
    short = short_id(job)
    (notice,) = [one for one in messages if "is on hold" in one]
    assert f"`rayjobs update {short} --release` lets it start" in notice
    assert f"`rayjobs cancel {short}` cancels it" in notice


def test_output_of_a_failed_attempt_is_not_shown_as_running(queue: Queue) -> None:
    job = queue.start(queue.submit())
    queue.store_file(job, "azureml-logs/70_driver_log.txt", LOG)
    why = "tries again (1 of 1) after a failure of class user: no data"
    assert queue.workspace.store.requeue(
        job.id, attempt=1, reason=why, outcome=Outcome.FAILED, failure=None
    )
    screen = Recorded()

    def end() -> None:
        queue.finish(queue.start(queue.workspace.store.job(job.id)))

    screen.after["attempt 1, which has ended, printed:"] = end
    follow_logs(queue.workspace, job.id, screen)
    assert screen.seen[:3] == [f"Queued: {why}", "attempt 1, which has ended, printed:", LOG]
    assert screen.seen.count(f"Queued: {why}") == 1
