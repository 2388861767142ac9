"""The contract of stores; each implementation's test class inherits it and provides `store`."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayjobs.core.errors import NotFoundError, TransitionError, UsageError
from rayjobs.core.failures import Failure, FailureClass
from rayjobs.injob.exit_record import ExitRecord, RankExit
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.hosts import Gpu, HostFacts, HostRecord
from rayjobs.jobs.records import Job, MetricPoint, StoredFile
from rayjobs.jobs.states import FINAL, LIVE, JobState, may_move
from rayjobs.spec.model import Dependency, Input, JobSpec, Resources
from rayjobs.store.base import Store
from rayjobs.store.requests import JobChanges, JobFilter, NewJob

S = JobState
WAY = (S.PROVISIONING, S.PREPARING, S.RUNNING, S.FINALIZING)
SPEC = JobSpec(script="train.py", name="digits")
FAILURE = Failure(FailureClass.USER, "rank 0 exited with 3", rank=0, exit_code=3, lines=("boom",))
SHAPE = {"nodes": 1.0, "cpus": 1.0, "gpus": 0.0, "memory": 0.0}


def exit_of(node: int, code: int = 0) -> ExitRecord:
    """Return the exit record of a node whose rank ended with `code`."""
    rank = RankExit(rank=node, exit_code=code)
    return ExitRecord("job", 1, node, "marker", Outcome.COMPLETED, ranks=(rank,))


class TurnedClock:
    """A clock that advances by a second with each reading."""

    def __init__(self) -> None:
        self.at = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)

    def now(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at

    def monotonic_s(self) -> float:
        return self.at.timestamp()


def submit(store: Store, spec: JobSpec = SPEC, **values: Any) -> Job:
    """Submit a job, with defaults for values that most tests do not need."""
    return store.submit(
        NewJob(spec=spec, **{"experiment": "mnist", "snapshot": None, "user": "ada", **values})
    )[0]


def bring(store: Store, job: Job, state: JobState) -> int:
    """Start a queued job and move it on to `state`; return its attempt."""
    attempt = store.start(job.id, attempt=store.job(job.id).attempt, allocation="rj-local-1")
    assert attempt is not None
    target = S.FINALIZING if state is S.COMPLETED else state
    if target in WAY:
        for old, new in pairwise(WAY[: WAY.index(target) + 1]):
            assert store.move(job.id, attempt=attempt.number, old=old, new=new)
    if state in FINAL:
        assert store.finish(job.id, attempt=attempt.number, state=state)
    return attempt.number


def point(sequence: int, *, step: int | None, name: str = "loss", **values: Any) -> MetricPoint:
    """Return a point, by default of rank 0 in attempt 1."""
    at = datetime(2026, 3, 1, 13, tzinfo=UTC)
    fields: dict[str, Any] = {"attempt": 1, "rank": 0, "value": 0.5, "at": at, **values}
    return MetricPoint(sequence=sequence, step=step, name=name, **fields)


def stored(name: str, attempt: int, size: int = 1) -> StoredFile:
    """Return a file's row."""
    return StoredFile(
        name=name,
        attempt=attempt,
        size=size,
        digest="sha256:" + "0" * 64,
        blob=f"files/{name}/{attempt}/{size}",
        stored_at=datetime(2026, 3, 1, 14, tzinfo=UTC),
    )


def steps(store: Store, job: Job) -> list[tuple[str | None, str]]:
    """Return the job's state changes from its history."""
    return [
        (event.data["old"], event.data["new"])
        for event in store.events(job.id)
        if event.kind == "state"
    ]


class StoreContract:
    """Inherited by `Test…` classes that define the fixture `store`."""

    # -- submit ------------------------------------------------------------------------------

    def test_a_job_comes_back_as_it_was_submitted(self, store: Store) -> None:
        spec = JobSpec(
            command="echo 'ü' && python train.py",
            display_name="Digits, große Zahl",
            resources=Resources(cpus=2, memory_gib=1.5),
            inputs={"data": Input(source="store/mnist", mode="download")},
            environment_variables={"A": "b\nc"},
            depends_on=(Dependency(job="other", when="any"),),
            tags={"team": "vision", "quote": "'\"%"},
            priority=7,
            target="cluster",
        )
        job, is_new = store.submit(
            NewJob(
                spec=spec,
                experiment="große Zahlen",
                snapshot="sha256:ab",
                user="ada",
                parent="sweep_1",
                kind="trial",
                properties={"commit": "abc"},
            )
        )
        assert is_new
        assert store.job(job.id) == job
        assert (job.spec, job.state, job.attempt) == (spec, S.QUEUED, 0)
        assert (job.experiment, job.snapshot, job.user) == ("große Zahlen", "sha256:ab", "ada")
        assert (job.parent, job.kind, job.target) == ("sweep_1", "trial", "cluster")
        assert (job.priority, job.display_name) == (7, "Digits, große Zahl")
        assert job.tags == spec.tags
        assert job.properties == {"commit": "abc"}
        assert job.submitted_at == job.changed_at
        assert job.submitted_at.tzinfo == UTC
        assert steps(store, job) == [(None, "Queued")]

    def test_history_of_all_jobs_continues_from_a_serial(self, store: Store) -> None:
        new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="u")
        first, _ = store.submit(new)
        second, _ = store.submit(new)
        page = store.history(limit=1)
        assert [event.job for event in page] == [first.id]
        rest = store.history(after=page[-1].serial)
        assert [event.job for event in rest] == [second.id]
        store.add_event(first.id, "note", "later")
        assert [event.kind for event in store.history(after=rest[-1].serial)] == ["note"]

    def test_a_repeated_key_gives_the_first_job(self, store: Store) -> None:
        first, is_new = store.submit(
            NewJob(
                spec=SPEC, experiment="mnist", snapshot="sha256:1", user="ada", idempotency_key="k"
            )
        )
        bring(store, first, S.RUNNING)
        again, is_new_again = store.submit(
            NewJob(
                spec=SPEC, experiment="mnist", snapshot="sha256:1", user="ada", idempotency_key="k"
            )
        )
        assert (is_new, is_new_again, again.id, again.state) == (True, False, first.id, S.RUNNING)
        assert len(store.jobs()) == 1

    def test_key_of_another_kind_is_refused(self, store: Store) -> None:
        first = submit(store, snapshot="sha256:1", idempotency_key="k")
        other = JobSpec(script="other.py", name="digits")
        with pytest.raises(UsageError, match=rf"'k'.*{first.id}.*another spec"):
            submit(store, other, snapshot="sha256:1", idempotency_key="k")
        with pytest.raises(UsageError, match="another snapshot"):
            submit(store, snapshot="sha256:2", idempotency_key="k")
        assert [job.id for job in store.jobs()] == [first.id]

    def test_without_a_key_each_submit_is_a_job(self, store: Store) -> None:
        assert submit(store).id != submit(store).id
        assert store.counts() == {S.QUEUED: 2}

    def test_ids_are_unique(self, store: Store) -> None:
        submit(store, id="mnist_1_aaaaaaaa")
        with pytest.raises(UsageError, match="already exists"):
            submit(store, id="mnist_1_aaaaaaaa")
        assert len(store.jobs()) == 1

    def test_threads_with_one_key_make_one_job(self, store: Store) -> None:
        got: list[tuple[str, bool]] = []
        barrier = threading.Barrier(8)

        def one() -> None:
            barrier.wait()
            job, is_new = store.submit(
                NewJob(
                    spec=SPEC, experiment="mnist", snapshot=None, user="ada", idempotency_key="k"
                )
            )
            got.append((job.id, is_new))

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 8
        assert len({job for job, _ in got}) == 1
        assert sum(is_new for _, is_new in got) == 1

    # -- finding and listing -------------------------------------------------------------------

    def test_threads_that_submit_without_a_name_get_different_ones(self, store: Store) -> None:
        submit(store, SPEC.model_copy(update={"name": "digits-2"}))  # a name that is taken
        names: list[str | None] = []
        barrier = threading.Barrier(8)

        def one() -> None:
            barrier.wait()
            names.append(submit(store, numbered=True).display_name)

        threads = [threading.Thread(target=one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, names)) == [f"digits-{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9)]
        assert store.find("digits-9").name == "digits"
        assert submit(store).display_name is None
        named = SPEC.model_copy(update={"display_name": "mine"})
        assert submit(store, named, numbered=True).display_name == "mine"

    def test_numbers_of_a_name_are_never_reused(self, store: Store) -> None:
        first = submit(store, numbered=True)
        store.request_cancel(first.id)
        assert store.prune_records([first.id]) == {first.id}
        assert submit(store, numbered=True).display_name == "digits-2"

    def test_job_is_found_by_id_prefix_suffix_and_name(self, store: Store) -> None:
        first = submit(store, id="mnist_1700000001_0a1b2c3d")
        second = submit(
            store,
            JobSpec(script="a.py", name="cats", display_name="All cats"),
            id="cats_1700000002_ffee0011",
        )
        for text in (first.id, "mnist_17", "mnist", "0a1b2c3d", "0a1", "digits"):
            assert store.find(text).id == first.id, text
        for text in (second.id, "cats_1", "cats", "ffee", "All cats"):
            assert store.find(text).id == second.id, text

    def test_an_ambiguous_text_lists_the_jobs(self, store: Store) -> None:
        submit(store, id="mnist_1_aa000000")
        submit(store, id="mnist_2_aa111111")
        for text in ("mnist", "aa", "digits"):
            with pytest.raises(UsageError) as caught:
                store.find(text)
            assert "mnist_1_aa000000" in str(caught.value)
            assert "mnist_2_aa111111" in str(caught.value)
        assert store.find("aa0").id == "mnist_1_aa000000"

    def test_a_whole_id_wins_over_longer_ones(self, store: Store) -> None:
        submit(store, id="mnist_1")
        submit(store, id="mnist_1_aa000000")
        assert store.find("mnist_1").id == "mnist_1"

    def test_complete_name_wins_over_prefixes(self, store: Store) -> None:
        submit(store, id="mnist_1_aa000000")
        submit(store, id="mnist_2_bb000000")
        named = submit(store, JobSpec(script="a.py", name="mnist"), id="x_3_cc000000")
        assert store.find("mnist").id == named.id

    def test_prefix_of_a_name_is_not_another_job(self, store: Store) -> None:
        job = submit(store, JobSpec(script="a.py", name="exp10"), id="exp10_1_aa000000")
        for text in ("exp1", "ex"):
            with pytest.raises(NotFoundError):
                store.find(text)
        assert store.find("exp10_1").id == job.id

    @pytest.mark.parametrize("text", ["%", "_", "mnist_%", "'", "\\", "no such job", "\U0010ffff"])
    def test_text_is_taken_literally(self, store: Store, text: str) -> None:
        submit(store, id="mnist_1_aa000000")
        with pytest.raises(NotFoundError):
            store.find(text)

    def test_not_found_error_suggests_similar_names(self, store: Store) -> None:
        submit(store, JobSpec(script="a.py", name="digits"), id="mnist_1_aa000000")
        with pytest.raises(NotFoundError, match="did you mean digits"):
            store.find("digist")
        with pytest.raises(NotFoundError, match="mnist_1_aa000000"):
            store.find("mnist_1_ab000000")
        with pytest.raises(UsageError, match="empty"):
            store.find("")

    def test_a_name_that_several_jobs_share_is_not_suggested(self, store: Store) -> None:
        for _ in range(2):
            submit(store, JobSpec(script="a.py", name="train"), numbered=True)
        with pytest.raises(NotFoundError, match=r"did you mean train-[12] or train-[12]\?"):
            store.find("trian")

    def test_calls_about_an_unknown_job_are_refused(self, store: Store) -> None:
        for call in (
            lambda: store.job("nope"),
            lambda: store.start("nope", attempt=0, allocation="a"),
            lambda: store.move("nope", attempt=1, old=S.RUNNING, new=S.FINALIZING),
            lambda: store.finish("nope", attempt=1, state=S.FAILED),
            lambda: store.requeue("nope", attempt=1, reason="", outcome=Outcome.SYSTEM),
            lambda: store.request_cancel("nope"),
            lambda: store.update("nope", JobChanges(priority=1)),
            lambda: store.attempts("nope"),
            lambda: store.events("nope"),
            lambda: store.add_event("nope", "note", "text"),
            lambda: store.metrics("nope"),
            lambda: store.add_metrics("nope", [point(0, step=0)]),
            lambda: store.files("nope"),
            lambda: store.publish_files("nope", attempt=1, files=[]),
        ):
            with pytest.raises(NotFoundError, match="'nope'"):
                call()

    def test_listing_combines_all_filters(self, store: Store) -> None:
        tagged = JobSpec(script="a.py", tags={"a.b": "1", 'q"': "%"}, target="cluster")
        one = submit(store, experiment="one")
        two = submit(store, tagged, experiment="two")
        three = submit(store, tagged, experiment="two", parent=two.id)
        bring(store, three, S.RUNNING)

        def found(**filters: Any) -> list[str]:
            which = JobFilter(**filters)
            jobs = [job.id for job in store.jobs(which)]
            assert [line.id for line in store.job_lines(which)] == jobs
            return jobs

        assert found() == [three.id, two.id, one.id]
        assert found(newest_first=False, limit=2) == [one.id, two.id]
        assert found(limit=0) == []
        assert found(states=[S.RUNNING]) == [three.id]
        assert found(states=[S.RUNNING, S.QUEUED], experiment="two") == [three.id, two.id]
        assert found(states=[]) == []
        assert found(parent=two.id) == [three.id]
        assert found(target="cluster", states=[S.QUEUED]) == [two.id]
        assert found(tag=("a.b", "1")) == [three.id, two.id]
        assert found(tag=('q"', "%")) == [three.id, two.id]
        assert found(tag=("a.b", "2")) == []
        assert store.counts() == {S.QUEUED: 2, S.RUNNING: 1}

    def test_lines_match_their_jobs(self, store: Store) -> None:
        job = submit(store, JobSpec(script="a.py", name="digits", tags={"a": "b"}))
        (line,) = store.job_lines()
        for field in ("id", "serial", "experiment", "state", "attempt", "priority", "user", "tags"):
            assert getattr(line, field) == getattr(job, field), field
        assert (line.name, line.submitted_at) == ("digits", job.submitted_at)

    # -- states --------------------------------------------------------------------------------

    def test_job_passes_through_its_states(self, store: Store) -> None:
        job = submit(store)
        attempt = store.start(job.id, attempt=0, allocation="rj-local-1")
        assert attempt is not None
        assert (attempt.number, attempt.allocation) == (1, "rj-local-1")
        assert store.attempts(job.id) == [attempt]
        for old, new in pairwise(WAY):
            assert store.move(job.id, attempt=1, old=old, new=new, reason=f"now {new}")
            assert store.job(job.id).state is new
            assert store.job(job.id).reason == f"now {new}"
        started = store.job(job.id).started_at
        assert started is not None
        assert store.finish(job.id, attempt=1, state=S.COMPLETED, outcome=Outcome.COMPLETED)
        done = store.job(job.id)
        assert (done.state, done.attempt, done.started_at) == (S.COMPLETED, 1, started)
        assert done.ended_at == done.changed_at
        (ended,) = store.attempts(job.id)
        assert (ended.outcome, ended.started_at, ended.ended_at) == (
            Outcome.COMPLETED,
            started,
            done.ended_at,
        )
        assert steps(store, job) == [
            (None, "Queued"),
            ("Queued", "Provisioning"),
            ("Provisioning", "Preparing"),
            ("Preparing", "Running"),
            ("Running", "Finalizing"),
            ("Finalizing", "Completed"),
        ]

    def test_a_start_is_conditional(self, store: Store) -> None:
        job = submit(store)
        assert store.start(job.id, attempt=1, allocation="a") is None
        assert store.start(job.id, attempt=0, allocation="a") is not None
        assert store.start(job.id, attempt=0, allocation="b") is None
        assert store.start(job.id, attempt=1, allocation="b") is None
        assert [attempt.allocation for attempt in store.attempts(job.id)] == ["a"]

    def test_an_actor_that_was_replaced_starts_nothing(self, store: Store) -> None:
        job = submit(store)
        store.claim_target(job.target, epoch="old")
        store.claim_target(job.target, epoch="new")
        assert store.start(job.id, attempt=0, allocation="a", epoch="old") is None
        assert store.job(job.id).state is S.QUEUED
        assert store.start(job.id, attempt=0, allocation="b", epoch="new") is not None

    def test_a_move_needs_the_state_and_the_attempt(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.PREPARING)
        assert not store.move(job.id, attempt=0, old=S.PREPARING, new=S.RUNNING)
        assert not store.move(job.id, attempt=2, old=S.PREPARING, new=S.RUNNING)
        assert not store.move(job.id, attempt=1, old=S.PROVISIONING, new=S.PREPARING)
        assert store.job(job.id).state is S.PREPARING

    def test_transitions_outside_the_table_are_refused(self, store: Store) -> None:
        job = submit(store)
        for old in S:
            for new in S:
                if not may_move(old, new) or new in FINAL or new is S.QUEUED or old is S.QUEUED:
                    with pytest.raises(TransitionError):
                        store.move(job.id, attempt=0, old=old, new=new)
        for state in S:
            if state not in FINAL:
                with pytest.raises(TransitionError):
                    store.finish(job.id, attempt=0, state=state)
        with pytest.raises(TransitionError, match="is Queued and cannot become Completed"):
            store.finish(job.id, attempt=0, state=S.COMPLETED)
        assert store.job(job.id) == job

    @pytest.mark.parametrize("state", [S.QUEUED, *WAY])
    @pytest.mark.parametrize("end", [S.FAILED, S.CANCELED])
    def test_a_job_can_end_from_each_state(
        self, store: Store, state: JobState, end: JobState
    ) -> None:
        job = submit(store)
        attempt = 0 if state is S.QUEUED else bring(store, job, state)
        failure = FAILURE if end is S.FAILED else None
        assert store.finish(job.id, attempt=attempt, state=end, reason="so it was", failure=failure)
        ended = store.job(job.id)
        assert (ended.state, ended.reason, ended.failure) == (end, "so it was", failure)
        assert all(a.ended_at is not None for a in store.attempts(job.id))

    @pytest.mark.parametrize("state", sorted(FINAL))
    def test_a_final_job_never_moves(self, store: Store, state: JobState) -> None:
        job = submit(store)
        attempt = bring(store, job, state)
        before = store.job(job.id), store.attempts(job.id), store.events(job.id)
        for other in FINAL:
            assert not store.finish(job.id, attempt=attempt, state=other, reason="late")
        assert not store.requeue(job.id, attempt=attempt, reason="late", outcome=Outcome.NODE_LOST)
        assert store.start(job.id, attempt=attempt, allocation="late") is None
        assert not store.move(job.id, attempt=attempt, old=S.RUNNING, new=S.FINALIZING)
        assert store.request_cancel(job.id) is state
        assert not store.set_hosts(job.id, attempt=attempt, hosts=[HostRecord()])
        assert not store.publish_files(job.id, attempt=attempt, files=[stored("a", attempt)])
        assert (store.job(job.id), store.attempts(job.id), store.events(job.id)) == before
        with pytest.raises(UsageError, match="priority"):
            store.update(job.id, JobChanges(priority=5))

    @pytest.mark.parametrize("state", WAY)
    def test_a_requeued_job_keeps_its_place(self, store: Store, state: JobState) -> None:
        job = submit(store)
        behind = submit(store)
        bring(store, job, state)
        later = datetime(2026, 3, 2, tzinfo=UTC)
        assert store.requeue(
            job.id,
            attempt=1,
            reason="its node was lost",
            outcome=Outcome.NODE_LOST,
            failure=FAILURE,
            not_before=later,
        )
        queued = store.job(job.id)
        assert (queued.state, queued.attempt, queued.serial) == (S.QUEUED, 1, job.serial)
        assert (queued.reason, queued.not_before) == ("its node was lost", later)
        assert queued.started_at is None
        assert queued.submitted_at == job.submitted_at
        assert [j.id for j in store.jobs(JobFilter(newest_first=False))] == [job.id, behind.id]
        (ended,) = store.attempts(job.id)
        assert (ended.outcome, ended.failure) == (Outcome.NODE_LOST, FAILURE)
        assert ended.ended_at is not None
        assert not store.requeue(job.id, attempt=1, reason="again", outcome=Outcome.SYSTEM)
        second = store.start(job.id, attempt=1, allocation="rj-local-2")
        assert second is not None
        assert second.number == 2
        assert store.job(job.id).not_before is None

    def test_a_late_attempt_changes_nothing(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        store.set_hosts(job.id, attempt=1, hosts=[HostRecord(pid=1)])
        store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        bring(store, job, S.RUNNING)
        before = store.job(job.id), store.attempts(job.id), store.events(job.id)
        assert not store.move(job.id, attempt=1, old=S.RUNNING, new=S.FINALIZING)
        assert not store.finish(job.id, attempt=1, state=S.FAILED, failure=FAILURE)
        assert not store.requeue(job.id, attempt=1, reason="late", outcome=Outcome.NODE_LOST)
        assert not store.set_hosts(job.id, attempt=1, hosts=[HostRecord(pid=2)])
        assert not store.record_exit(job.id, attempt=1, exits=[exit_of(0)])
        assert not store.publish_files(job.id, attempt=1, files=[stored("outputs/a", 1)])
        assert (store.job(job.id), store.attempts(job.id), store.events(job.id)) == before
        assert store.files(job.id) == []

    def test_an_attempt_that_was_put_back_cannot_end_its_job(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        store.requeue(job.id, attempt=1, reason="replaced", outcome=Outcome.PUT_BACK)
        before = store.job(job.id), store.attempts(job.id), store.events(job.id)
        assert not store.finish(job.id, attempt=1, state=S.FAILED, failure=FAILURE)
        assert (store.job(job.id), store.attempts(job.id), store.events(job.id)) == before
        assert store.finish(job.id, attempt=1, state=S.CANCELED, also_requeued=True)
        assert store.job(job.id).state is S.CANCELED

    def test_hosts_and_exits_belong_to_an_attempt(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        facts = HostFacts(python="3.11.7", gpus=(Gpu(0, name="H200"),))
        hosts = [
            HostRecord(0, "n0", pid=11, start_time=5, boot_id="b", lease_s=90.0, facts=facts),
            HostRecord(1, "n1", address="10.0.0.1"),
        ]
        assert store.set_hosts(job.id, attempt=1, hosts=hosts, cold_reason="shadows torch")
        assert store.record_exit(job.id, attempt=1, exits=[exit_of(1)])
        assert store.record_exit(job.id, attempt=1, exits=[exit_of(0, 3)])
        assert store.record_exit(job.id, attempt=1, exits=[exit_of(0, 3)])
        ((found, attempt),) = store.live("local")
        assert found.id == job.id
        assert (attempt.hosts, attempt.cold_reason) == (tuple(hosts), "shadows torch")
        assert attempt.exits == (exit_of(0, 3), exit_of(1))
        store.finish(job.id, attempt=1, state=S.FAILED)
        assert store.record_exit(job.id, attempt=1, exits=[exit_of(0, 3)])
        assert not store.record_exit(job.id, attempt=1, exits=[exit_of(0, 4)])
        assert store.attempts(job.id)[0].exits[0] == exit_of(0, 3)

    def test_live_jobs_are_those_of_the_target(self, store: Store) -> None:
        jobs = {state: submit(store) for state in S}
        for state, job in jobs.items():
            if state is not S.QUEUED:
                bring(store, job, state)
        other = submit(store, JobSpec(script="a.py", target="cluster"))
        bring(store, other, S.RUNNING)
        assert {job.state for job, _ in store.live("local")} == LIVE
        assert [job.id for job, _ in store.live("cluster")] == [other.id]
        assert [attempt.number for _, attempt in store.live("cluster")] == [1]

    # -- cancel --------------------------------------------------------------------------------

    def test_a_queued_job_is_canceled_at_once(self, store: Store) -> None:
        job = submit(store)
        assert store.request_cancel(job.id, by="ada") is S.CANCELED
        assert store.request_cancel(job.id, by="bob") is S.CANCELED
        canceled = store.job(job.id)
        assert canceled.reason == "canceled by ada"
        assert canceled.ended_at is not None
        assert store.start(job.id, attempt=0, allocation="a") is None
        assert steps(store, job)[-1] == ("Queued", "Canceled")

    @pytest.mark.parametrize("state", WAY)
    def test_a_live_job_keeps_its_state_and_gets_the_request(
        self, store: Store, state: JobState
    ) -> None:
        job = submit(store)
        bring(store, job, state)
        assert store.request_cancel(job.id, by="ada") is state
        requested = store.job(job.id)
        assert requested.cancel_requested_at is not None
        assert requested.state is state
        assert store.request_cancel(job.id, by="bob") is state
        assert store.job(job.id) == requested
        assert [e.message for e in store.events(job.id) if e.kind == "cancel"] == [
            "cancel requested by ada"
        ]
        assert store.finish(job.id, attempt=1, state=S.CANCELED)

    @pytest.mark.parametrize("state", WAY)
    def test_a_job_to_be_canceled_is_not_queued_again(self, store: Store, state: JobState) -> None:
        job = submit(store)
        bring(store, job, state)
        store.request_cancel(job.id)
        assert store.requeue(job.id, attempt=1, reason="preempted", outcome=Outcome.PREEMPTED)
        ended = store.job(job.id)
        assert ended.state is S.CANCELED
        assert "preempted" in ended.reason
        assert store.attempts(job.id)[0].ended_at is not None

    # -- what may change -------------------------------------------------------------------------

    def test_tags_properties_name_and_priority_change(self, store: Store) -> None:
        job = submit(store, JobSpec(script="a.py", tags={"keep": "1", "drop": "2"}))
        changed = store.update(
            job.id,
            JobChanges(
                priority=9,
                tags={"drop": None, "new": "ü"},
                properties={"a": "1"},
                display_name="Best one",
            ),
        )
        assert changed == store.job(job.id)
        assert changed.tags == {"keep": "1", "new": "ü"}
        assert (changed.priority, changed.properties) == (9, {"a": "1"})
        assert changed.display_name == "Best one"
        assert changed.spec == job.spec
        assert store.find("Best one").id == job.id
        assert "priority 0 → 9" in [event.message for event in store.events(job.id)]
        assert store.update(job.id, JobChanges()) == changed

    def test_properties_are_written_once(self, store: Store) -> None:
        job = submit(store, properties={"a": "1"})
        store.update(job.id, JobChanges(properties={"a": "1", "b": "2"}))
        with pytest.raises(UsageError, match=r"'a'.*'1'.*'2'"):
            store.update(job.id, JobChanges(properties={"a": "2", "c": "3"}, tags={"t": "1"}))
        assert store.job(job.id).properties == {"a": "1", "b": "2"}
        assert store.job(job.id).tags == {}

    def test_a_final_job_can_still_be_tagged(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.COMPLETED)
        assert store.update(job.id, JobChanges(tags={"best": "yes"})).tags == {"best": "yes"}

    # -- properties --------------------------------------------------------------------------

    def test_no_order_of_calls_breaks_the_table(self, store: Store) -> None:
        @settings(max_examples=60)
        @given(st.lists(CALLS, max_size=25))
        def holds(calls: list[tuple[str, JobState, int]]) -> None:
            check_order(store, calls)

        holds()


# A call, the state it names, and the distance of its attempt from the job's newest. "next" is the
# call of a correct actor; without it, few jobs would get past their first states.
CALLS = st.tuples(
    st.sampled_from(["next", "next", "start", "move", "finish", "requeue", "cancel"]),
    st.sampled_from([*S]),
    st.sampled_from([0, 0, 0, 0, -1, 1]),
)
NEXT_CALL = {
    S.QUEUED: ("start", S.PROVISIONING),
    S.PROVISIONING: ("move", S.PREPARING),
    S.PREPARING: ("move", S.RUNNING),
    S.RUNNING: ("move", S.FINALIZING),
    S.FINALIZING: ("finish", S.COMPLETED),
}


def check_order(store: Store, calls: list[tuple[str, JobState, int]]) -> None:
    """Make the calls on a new job; check the invariants after each."""
    job = submit(store)
    for call, state, offset in calls:
        before = store.job(job.id)
        attempt = before.attempt + offset
        name, new = (
            NEXT_CALL.get(before.state, ("cancel", state)) if call == "next" else (call, state)
        )
        started = None
        try:
            if name == "start":
                started = store.start(job.id, attempt=attempt, allocation="a")
            elif name == "move":
                store.move(job.id, attempt=attempt, old=before.state, new=new)
            elif name == "finish":
                store.finish(job.id, attempt=attempt, state=new)
            elif name == "requeue":
                store.requeue(job.id, attempt=attempt, reason="r", outcome=Outcome.NODE_LOST)
            else:
                store.request_cancel(job.id)
        except TransitionError:
            assert store.job(job.id) == before
        after = store.job(job.id)
        if before.state in FINAL:
            assert after == before
        elif before.state is not after.state:
            assert may_move(before.state, after.state)
            assert name == "cancel" or offset == 0
        assert after.attempt == before.attempt + (started is not None)
        assert after.serial == job.serial
    history = steps(store, job)
    assert history[0] == (None, "Queued")
    assert [old for old, _ in history[1:]] == [new for _, new in history[:-1]]
    assert sum(new in FINAL for _, new in history) <= 1
    assert history[-1][1] == store.job(job.id).state
    attempts = store.attempts(job.id)
    assert [a.number for a in attempts] == list(range(1, store.job(job.id).attempt + 1))
    assert sum(a.ended_at is None for a in attempts) == (store.job(job.id).state in LIVE)
