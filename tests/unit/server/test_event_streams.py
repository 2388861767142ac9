"""Events as streams: those of all jobs, from any serial."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.http_messages import NewEvent, StreamPosition
from tests.unit.server.conftest import Served

STREAM = "/v1/event-stream"
RECORD = NewEvent | StreamPosition


def submit(served: Served, name: str) -> str:
    spec = JobSpec(command="true", name=name)
    new = NewJob(spec=spec, experiment="e", snapshot=None, user="ada")
    return served.workspace.store.submit(new)[0].id


def test_events_of_all_jobs_are_streamed_as_written(served: Served) -> None:
    first = submit(served, "one")
    server = served.connection()
    with closing(server):
        lines = server.lines(STREAM, RECORD, query={})
        events = (one.event for one in lines if isinstance(one, NewEvent))
        seen = [next(events) for _ in served.workspace.store.events(first)]
        assert {one.job for one in seen} == {first}
        threading.Timer(0.3, submit, (served, "two")).start()
        assert next(events).job != first
    server = served.connection("eve")
    after = {"after": str(seen[-1].serial)}
    with closing(server):
        (record,) = itertools.islice(server.lines(STREAM, RECORD, query=after), 1)
        assert isinstance(record, NewEvent) and record.event.job != first


@pytest.mark.long
def test_idle_stream_reports_its_position(served: Served) -> None:
    last = served.workspace.store.events(submit(served, "one"))[-1].serial
    query = {"after": str(last)}
    with closing(served.connection()) as server:
        lines = server.lines(STREAM, RECORD, query=query)
        assert list(itertools.islice(lines, 2)) == [StreamPosition(last)] * 2


def test_unknown_job_is_named(served: Served) -> None:
    with pytest.raises(NotFoundError, match="none-1"):
        next(served.connection().lines("/v1/jobs/none-1/event-stream", RECORD, query={}))


@pytest.mark.parametrize("after", ["-1", "x", "9" * 16])
def test_invalid_serial_is_refused(served: Served, after: str) -> None:
    with pytest.raises(UsageError, match="after must be the serial of an event"):
        next(served.connection().lines(STREAM, RECORD, query={"after": after}))
