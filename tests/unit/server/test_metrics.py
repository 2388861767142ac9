"""`/metrics`: the text that Prometheus reads, and its figures of a queue."""

from __future__ import annotations

import re

import pytest

from rayjobs.server.lines import Lines
from rayjobs.server.metrics import Requests
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.target import wake_client
from rayjobs.target.answers import NodeStatus, StatusAnswer, WaitingJob
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

LINE = re.compile(r'[a-z_]+\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\} [-+0-9.eInf]+\Z')


def text_of(served: Served) -> str:
    return served.connection("prometheus", Role.VIEWER).whole("GET", "/metrics").decode()


def test_each_line_has_the_prometheus_format(served: Served) -> None:
    names = set()
    for line in text_of(served).splitlines():
        if line.startswith("#"):
            _, word, name, _ = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            names.add(name)
        else:
            assert LINE.match(line), line
            assert (
                line.partition("{")[0]
                .removesuffix("_bucket")
                .removesuffix("_sum")
                .removesuffix("_count")
                in names
            )


def test_jobs_waits_targets_and_requests_are_counted(served: Served) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")
    for _ in range(3):
        served.client("ada").store.submit(new)
    text = text_of(served)
    assert 'rayjobs_jobs{state="Queued"} 3\n' in text
    assert re.search(r'rayjobs_waiting_seconds\{target="local"\} \d', text)
    assert 'rayjobs_target_up{target="local"} 0\n' in text  # nothing runs jobs here
    assert 'rayjobs_http_requests_total{verb="POST",route="/v1/jobs",status="200"} 3\n' in text


def test_the_queue_and_the_nodes_of_a_running_target_are_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = StatusAnswer(
        live=("/w::a",),
        waiting=dict.fromkeys(("/w::b", "/w::c"), WaitingJob()),
        nodes=(NodeStatus(cpus=4.0, free_cpus=1.0, gpus=2.0), NodeStatus(cpus=4.0, free_cpus=4.0)),
    )

    async def answer(*_: object, **__: object) -> StatusAnswer:
        return status

    monkeypatch.setattr(wake_client, "ask_async", answer)
    text = text_of(served)
    for line in (
        'target_up{target="local"} 1',
        'queue{target="local",kind="waiting"} 2',
        'queue{target="local",kind="live"} 1',
        'nodes{target="local"} 2',
        'cpus{target="local",kind="total"} 8',
        'cpus{target="local",kind="used"} 3',
        'gpus{target="local",kind="used"} 2',
    ):
        assert f"rayjobs_{line}\n" in text


def test_the_longest_wait_is_that_of_each_target(served: Served) -> None:
    store = served.workspace.store

    def submit(target: str) -> str:
        spec = JobSpec(command="true", target=target)
        new = NewJob(spec=spec, experiment="e", snapshot=None, user="ada")
        return store.submit(new)[0].id

    store.hold(submit("held"), reason="for a test")
    for _ in range(101):
        submit("busy")
    submit("other")
    found = re.findall(r'rayjobs_waiting_seconds\{target="(.*)"\}', text_of(served))
    assert found == ["busy", "other"]


def test_a_histogram_counts_up_to_all() -> None:
    requests = Requests(Lines(None))
    for seconds in (0.001, 0.02, 0.3, 99.0):
        requests.add("GET", "/x", 200, seconds)
    lines = list(requests.lines())
    buckets = [line for line in lines if "_bucket" in line]
    assert [line.rpartition(" ")[2] for line in buckets] == [
        "1", "1", "2", "2", "2", "2", "3", "3", "3", "3", "3", "4",
    ]  # fmt: skip
    assert buckets[-1].startswith('rayjobs_http_request_seconds_bucket{verb="GET",le="+Inf"}')
    assert 'rayjobs_http_request_seconds_count{verb="GET"} 4' in lines


@pytest.mark.parametrize("status", [401])
def test_metrics_need_a_token(served: Served, status: int) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == status
    connection.close()
