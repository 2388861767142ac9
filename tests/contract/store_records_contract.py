"""The contract of stores for allocations, histories, metrics and files."""

from __future__ import annotations

import threading

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.outcomes import Outcome
from rayjobs.jobs.events import Resumed
from rayjobs.jobs.records import AllocationState, MetricPoint
from rayjobs.spec.model import Container, JobSpec, Packages
from rayjobs.store.base import Store
from rayjobs.store.requests import JobChanges, Page
from tests.contract.store_contract import (
    SHAPE,
    SPEC,
    S,
    bring,
    point,
    stored,
    submit,
)


def metrics_in_pages(store: Store, job: str, name: str | None = None) -> list[MetricPoint]:
    """Return all points, read in pages of two."""
    found: list[MetricPoint] = []
    page = store.metrics(job, name=name, page=Page(2))
    while page:
        assert len(page) <= 2
        found += page
        after = page[-1].attempt, page[-1].rank, page[-1].sequence
        page = store.metrics(job, name=name, page=Page(2, after))
    return found


class StoreRecordsContract:
    """Tests of a store's records, which an implementation's class inherits like `StoreContract`."""

    # -- allocations -----------------------------------------------------------------------------

    def test_an_allocation_is_recorded_placed_held_and_handed_on(self, store: Store) -> None:
        made = store.add_allocation("rj-1", target="local", shape=SHAPE)
        assert (made.state, made.shape, made.nodes) == (AllocationState.CREATING, SHAPE, ())
        assert not store.hold_allocation("rj-1", job="a", attempt=1)
        assert store.place_allocation("rj-1", nodes=["n1", "n2"], gpus=[["0", "1"], []])
        assert not store.place_allocation("rj-1", nodes=["other"], gpus=[[]])
        assert store.hold_allocation("rj-1", job="a", attempt=1)
        assert not store.hold_allocation("rj-1", job="b", attempt=1)
        assert not store.free_allocation("rj-1", job="b", attempt=1, proven=True)
        assert not store.free_allocation("rj-1", job="a", attempt=2, proven=True)
        (taken,) = store.allocations("local")
        assert (taken.state, taken.job, taken.attempt) == (AllocationState.HELD, "a", 1)
        assert (taken.nodes, taken.gpus) == (("n1", "n2"), (("0", "1"), ()))
        assert store.free_allocation("rj-1", job="a", attempt=1, proven=True)
        (idle,) = store.allocations("local")
        assert (idle.state, idle.job, idle.attempt) == (AllocationState.IDLE, None, None)
        assert store.hold_allocation("rj-1", job="b", attempt=1)

    def test_an_allocation_without_proof_is_never_handed_on(self, store: Store) -> None:
        store.add_allocation("rj-1", target="local", shape=SHAPE)
        store.place_allocation("rj-1", nodes=["n"], gpus=[[]])
        store.hold_allocation("rj-1", job="a", attempt=1)
        assert store.free_allocation("rj-1", job="a", attempt=1, proven=False)
        (drained,) = store.allocations("local")
        assert (drained.state, drained.job) == (AllocationState.DRAINING, "a")
        assert not store.hold_allocation("rj-1", job="b", attempt=1)
        assert not store.free_allocation("rj-1", job="a", attempt=1, proven=True)
        assert store.release_allocation("rj-1")
        assert not store.release_allocation("rj-1")
        assert not store.hold_allocation("rj-1", job="b", attempt=1)
        assert store.allocations("local") == []
        assert [a.name for a in store.allocations("local", released=True)] == ["rj-1"]

    def test_allocation_names_are_used_once_and_listed_by_target(self, store: Store) -> None:
        for name in ("rj-2", "rj-1"):
            store.add_allocation(name, target="local", shape=SHAPE)
        store.add_allocation("rj-3", target="cluster", shape=SHAPE)
        with pytest.raises(UsageError, match="rj-1"):
            store.add_allocation("rj-1", target="local", shape=SHAPE)
        assert [a.name for a in store.allocations("local")] == ["rj-2", "rj-1"]
        assert not store.release_allocation("rj-9")

    def test_threads_race_for_an_idle_allocation(self, store: Store) -> None:
        store.add_allocation("rj-1", target="local", shape=SHAPE)
        store.place_allocation("rj-1", nodes=["n"], gpus=[[]])
        barrier, won = threading.Barrier(6), []

        def one(number: int) -> None:
            barrier.wait()
            if store.hold_allocation("rj-1", job=f"job-{number}", attempt=1):
                won.append(f"job-{number}")

        threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [a.job for a in store.allocations("local")] == won

    # -- history, metrics, files -------------------------------------------------------------------

    def test_history_continues_from_a_serial(self, store: Store) -> None:
        job, other = submit(store), submit(store)
        store.add_event(job.id, "note", "prepared in 2 s", attempt=1, data={"s": [2.0, None]})
        store.add_event(other.id, "note", "not this one")
        first, second = store.events(job.id)
        assert (second.kind, second.message, second.attempt) == ("note", "prepared in 2 s", 1)
        assert second.data == {"s": [2.0, None]}
        assert second.serial > first.serial
        assert store.events(job.id, after=first.serial) == [second]
        assert store.events(job.id, after=second.serial) == []

    def test_a_metric_batch_may_be_sent_twice(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        batch = [
            point(0, step=0, value=1),
            point(1, step=None, name="note", value={"rows": [1, "ü"]}),
            point(2, step=1, value=float("inf")),
        ]
        assert store.add_metrics(job.id, batch[:2]) == 2
        assert store.add_metrics(job.id, [*batch, point(0, step=0, rank=1)]) == 2
        assert store.add_metrics(job.id, batch) == 0
        assert store.add_metrics(job.id, []) == 0
        assert store.metrics(job.id) == [*batch, point(0, step=0, rank=1)]
        assert store.metrics(job.id, name="note") == [batch[1]]
        assert store.metrics(job.id, name="none") == []
        assert store.metrics(submit(store).id) == []

    def test_the_newest_value_of_each_metric_is_known_for_all_jobs(self, store: Store) -> None:
        job, other, empty = submit(store), submit(store), submit(store)
        bring(store, job, S.RUNNING)
        store.add_metrics(job.id, [point(0, step=0, value=0.9), point(20, step=1, value=0.8)])
        store.add_metrics(job.id, [point(10, step=0, value=0.7, rank=1)])
        store.add_metrics(job.id, [point(30, step=None, name="text", value={"kind": "x"})])
        store.add_metrics(other.id, [point(0, step=0, value="NaN", attempt=0)])
        assert store.metric_names() == ["loss", "text"]
        assert store.metric_names(most=1) == ["loss"]
        assert store.last_metrics(["loss"]) == {
            job.serial: {"loss": 0.8},
            other.serial: {"loss": "NaN"},
        }
        assert store.last_metrics(["text", "none"]) == {job.serial: {"text": {"kind": "x"}}}
        # A point sent again changes nothing; only points of a newer attempt replace it.
        store.add_metrics(job.id, [point(0, step=0, value=0.9)])
        store.requeue(job.id, attempt=1, reason="node lost", outcome=Outcome.NODE_LOST)
        store.start(job.id, attempt=1, allocation="rj-local-2")
        store.add_metrics(job.id, [point(0, step=0, value=0.6, attempt=2)])
        store.add_metrics(job.id, [point(99, step=9, value=0.1)])
        assert store.last_metrics(["loss"])[job.serial] == {"loss": 0.6}
        store.request_cancel(empty.id)
        store.request_cancel(other.id)
        assert store.prune_records([empty.id, other.id]) == {empty.id, other.id}
        assert list(store.last_metrics(["loss"])) == [job.serial]

    def test_arguments_of_many_jobs_are_read_at_once(self, store: Store) -> None:
        jobs = [
            submit(store, SPEC.model_copy(update={"arguments": ("--lr", str(n))})) for n in range(3)
        ]
        everything = store.job_arguments([job.serial for job in jobs])
        assert everything == {job.serial: ("--lr", str(n)) for n, job in enumerate(jobs)}
        assert store.job_arguments([jobs[1].serial]) == {jobs[1].serial: ("--lr", "1")}

    def test_a_value_that_is_not_a_number_is_kept(self, store: Store) -> None:
        job = submit(store)
        store.add_metrics(job.id, [point(0, step=0, value=float("nan"))])
        (kept,) = store.metrics(job.id)
        assert kept.value != kept.value

    def test_a_newer_attempt_hides_from_its_own_first_step_on(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        first = [
            *(point(n, step=n) for n in range(5)),
            point(5, step=None, name="note"),
            point(6, step=9, name="only-old"),
        ]
        store.add_metrics(job.id, first)
        store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        bring(store, job, S.RUNNING)
        second = [point(n, step=n + 3, attempt=2, value=2.0) for n in range(2)]
        assert store.metrics(job.id) == first
        store.add_metrics(job.id, second)
        assert store.metrics(job.id) == [*first[:3], *first[5:], *second]
        assert store.metrics(job.id, all_attempts=True) == [*first, *second]
        assert [p.step for p in store.metrics(job.id, name="loss")] == [0, 1, 2, 3, 4]
        assert metrics_in_pages(store, job.id) == store.metrics(job.id)

    def test_points_without_steps_of_lost_work_are_hidden(self, store: Store) -> None:
        job = submit(store)

        def log(attempt: int, *values: float) -> list[MetricPoint]:
            points = [
                point(n, step=None, attempt=attempt, value=value) for n, value in enumerate(values)
            ]
            store.add_metrics(job.id, points)
            return points

        def again(number: int) -> None:
            store.requeue(job.id, attempt=number, reason="lost", outcome=Outcome.NODE_LOST)
            bring(store, job, S.RUNNING)

        bring(store, job, S.RUNNING)
        first = log(1, 0.5, 0.97)
        again(1)
        assert store.metrics(job.id) == first  # nothing better is known yet
        second = log(2, 0.4)
        assert store.metrics(job.id) == second == metrics_in_pages(store, job.id)
        again(2)
        own = Resumed(True).to_json()
        store.add_event(job.id, Resumed.KIND, "from its checkpoint", attempt=3, data=own)
        third = log(3, 0.6)
        assert store.metrics(job.id) == [*second, *third]
        again(3)  # where the first attempt started: its input, not its own checkpoint
        other = Resumed(False).to_json()
        store.add_event(job.id, Resumed.KIND, "from files", attempt=4, data=other)
        fourth = log(4, 0.3)
        assert store.metrics(job.id) == fourth
        assert store.metrics(job.id, all_attempts=True) == [*first, *second, *third, *fourth]

    def test_points_of_an_attempt_that_is_over_are_kept_hidden(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        bring(store, job, S.RUNNING)
        late = point(0, step=0)
        assert store.add_metrics(job.id, [late]) == 1
        assert store.metrics(job.id) == []
        assert store.metrics(job.id, all_attempts=True) == [late]

    def test_the_logs_of_earlier_attempts_stay(self, store: Store) -> None:
        job = submit(store)
        log = "azureml-logs/70_driver_log.txt"
        for attempt in (1, 2, 3):
            bring(store, job, S.RUNNING)
            for size in (10 * attempt, 10 * attempt + 1):  # it grows while it is published
                found = [stored(log, attempt, size), stored("outputs/m.pt", attempt)]
                assert store.publish_files(job.id, attempt=attempt, files=found)
            if attempt < 3:
                assert store.requeue(job.id, attempt=attempt, reason="x", outcome=Outcome.FAILED)
        assert [(one.name, one.attempt, one.size) for one in store.files(job.id)] == [
            (log, 3, 31),
            ("azureml-logs/attempt-1/70_driver_log.txt", 1, 11),
            ("azureml-logs/attempt-2/70_driver_log.txt", 2, 21),
            ("outputs/m.pt", 3, 1),
        ]

    def test_the_newest_lock_is_that_of_the_same_packages(self, store: Store) -> None:
        lock = "azureml-setup/environment.lock.txt"
        six = JobSpec(script="a.py", environment=Packages(pip=("six",)))
        in_image = six.model_copy(update={"container": Container(image="a:1")})
        assert store.newest_lock(six) is None
        jobs = [submit(store, spec) for spec in (six, six, in_image, JobSpec(script="a.py"), six)]
        for job in jobs[:4]:
            bring(store, job, S.RUNNING)
            files = [stored(lock, 1), stored("outputs/a", 1)]
            assert store.publish_files(job.id, attempt=1, files=files)
        other_script = six.model_copy(update={"script": "other.py"})
        assert store.newest_lock(other_script) == (jobs[1].id, stored(lock, 1))
        assert store.newest_lock(in_image) == (jobs[2].id, stored(lock, 1))
        assert store.newest_lock(JobSpec(script="a.py")) is None
        assert store.newest_lock(JobSpec(script="a.py", environment="/usr/bin/python3")) is None
        numpy = six.model_copy(update={"environment": Packages(pip=("numpy",))})
        assert store.newest_lock(numpy) is None

    def test_files_are_published_and_replaced(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        log, model = stored("azureml-logs/70_driver_log.txt", 1), stored("outputs/m.pt", 1)
        assert store.publish_files(job.id, attempt=1, files=[model, log])
        longer = stored("azureml-logs/70_driver_log.txt", 1, size=2**40)
        assert store.publish_files(job.id, attempt=1, files=[longer])
        assert store.files(job.id) == [longer, model]
        store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        assert not store.publish_files(job.id, attempt=2, files=[stored("outputs/m.pt", 2)])
        bring(store, job, S.RUNNING)
        assert not store.publish_files(job.id, attempt=1, files=[stored("outputs/x", 1)])
        assert store.publish_files(job.id, attempt=2, files=[stored("outputs/m.pt", 2)])
        assert store.files(job.id) == [longer, stored("outputs/m.pt", 2)]

    def test_newest_attempt_drops_its_own_files(self, store: Store) -> None:
        job = submit(store)
        bring(store, job, S.RUNNING)
        first = [stored("outputs/a", 1), stored("outputs/b", 1)]
        assert store.publish_files(job.id, attempt=1, files=first)
        store.requeue(job.id, attempt=1, reason="lost", outcome=Outcome.NODE_LOST)
        bring(store, job, S.RUNNING)
        assert not store.drop_files(job.id, attempt=1, names=["outputs/a"])
        assert store.publish_files(job.id, attempt=2, files=[stored("outputs/b", 2)])
        assert store.drop_files(job.id, attempt=2, names=["outputs/a", "outputs/b", "absent"])
        assert store.files(job.id) == first[:1]
        with pytest.raises(NotFoundError):
            store.drop_files("nope", attempt=1, names=[])

    # -- the store itself ------------------------------------------------------------------------

    def test_claims_of_a_target_grow(self, store: Store) -> None:
        assert store.target_epoch("local") is None
        assert store.claim_target("local", epoch="a") == 1
        assert store.claim_target("local", epoch="b") == 2
        assert store.claim_target("cluster", epoch="c") == 1
        assert store.target_epoch("local") == (2, "b")

    def test_long_lists_are_read_in_pages(self, store: Store) -> None:
        job = submit(store)
        points = [
            point(number, step=None, rank=number % 2, name=("a", "b")[number % 3 == 0])
            for number in range(8)
        ]
        store.add_metrics(job.id, points)
        for name in (None, "a"):
            assert metrics_in_pages(store, job.id, name) == store.metrics(job.id, name=name)
        events = store.events(job.id)
        store.update(job.id, JobChanges(priority=5))
        assert store.events(job.id, page=Page(1)) == events[:1]
        assert store.events(job.id, page=Page(5, (events[0].serial,))) == store.events(job.id)[1:]
        other = submit(store)
        first, second = store.queue_history()
        assert store.queue_history(page=Page(1)) == [first]
        assert store.queue_history(page=Page(5, (first.serial,))) == [second]
        assert (second.job, second.serial) == (other.id, other.serial)

    def test_store_values_are_kept(self, store: Store) -> None:
        assert store.meta("workspace") is None
        store.set_meta("workspace", "w1")
        store.set_meta("workspace", "w2")
        assert store.meta("workspace") == "w2"
        assert store.claim_meta("workspace", "w3") == "w2" == store.meta("workspace")
        assert store.claim_meta("claimed", "first") == "first" == store.meta("claimed")

    def test_store_values_are_read_and_dropped_by_key_range(self, store: Store) -> None:
        for key in ("a:1", "a:2", "a:3", "a-b", "A:2", "a:", "a:ü", "b:1"):
            store.set_meta(key, key)
        assert list(store.meta_under("a:")) == ["a:", "a:1", "a:2", "a:3", "a:ü"]
        assert list(store.meta_between("a:1", "a:3")) == ["a:1", "a:2"]
        newest = store.meta_between("a:", "a:~", newest_first=True, limit=2)
        assert list(newest) == ["a:3", "a:2"]
        assert store.drop_meta("a:1", "a:3") == 2
        assert list(store.meta_under("a:")) == ["a:", "a:3", "a:ü"]
        assert store.meta("A:2") == "A:2"
