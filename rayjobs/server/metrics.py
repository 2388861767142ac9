"""Metrics of a workspace and its server, in the Prometheus text format."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response

from rayjobs.core.paths import home
from rayjobs.jobs.states import JobState
from rayjobs.server.access import Caller
from rayjobs.server.lines import Lines
from rayjobs.server.routes import HandlerRoute
from rayjobs.server.workers import in_thread
from rayjobs.target import targets, wake_client
from rayjobs.target.answers import NodeStatus, StatusAnswer
from rayjobs.target.requests import TargetRequest
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role

Endpoint = Callable[[Request], Awaitable[Response]]
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RECENT = timedelta(hours=1)
MOST_WAITS = 10_000
KEPT_S = 5.0  # several scrapers cost the store no more than one does
TARGET_S = 2.0
QUANTILES = (0.5, 0.95, 1.0)
FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Requests:
    """Records how long requests took until the first byte of the answer. Thread-safe."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS_S) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[tuple[str, str, int], int] = defaultdict(int)

    def timed(self, verb: str, path: str, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint whose requests are counted, and written to the log."""

        async def measured(request: Request) -> Response:
            started_s = time.perf_counter()
            status = 500
            try:
                answer = await endpoint(request)
                status = answer.status_code
                return answer
            finally:
                seconds = time.perf_counter() - started_s
                self.add(verb, path, status, seconds)
                self._lines.request(request, status, seconds)

        return measured

    def add(self, verb: str, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        bucket = next((n for n, limit in enumerate(BUCKETS_S) if seconds <= limit), len(BUCKETS_S))
        with self._lock:
            self._buckets[verb][bucket] += 1
            self._sums[verb] += seconds
            self._counts[verb, path, status] += 1

    def lines(self) -> Iterable[str]:
        """Yield the lines of the metrics of requests."""
        with self._lock:
            buckets = {verb: list(found) for verb, found in self._buckets.items()}
            sums, counts = dict(self._sums), dict(self._counts)
        name = "rayjobs_http_request_seconds"
        yield from _head(name, "histogram", "Seconds to the first byte of an answer.")
        for verb, found in sorted(buckets.items()):
            total = 0
            for limit, number in zip((*BUCKETS_S, "+Inf"), found, strict=True):
                total += number
                yield _line(f"{name}_bucket", total, verb=verb, le=str(limit))
            yield _line(f"{name}_sum", sums[verb], verb=verb)
            yield _line(f"{name}_count", total, verb=verb)
        yield from _head("rayjobs_http_requests_total", "counter", "Requests by route and status.")
        for (verb, path, status), number in sorted(counts.items()):
            yield _line(
                "rayjobs_http_requests_total", number, verb=verb, route=path, status=str(status)
            )


def route(workspace: OpenWorkspace, requests: Requests) -> HandlerRoute[str]:
    """Return the route of the metrics."""
    kept: tuple[float, list[str]] = (float("-inf"), [])
    lock = asyncio.Lock()

    async def metrics(_request: Request, _caller: Caller) -> Response:
        nonlocal kept
        async with lock:
            if time.monotonic() - kept[0] > KEPT_S:
                found = await in_thread(lambda: list(_of_store(workspace)))
                found += await _of_targets()
                kept = (time.monotonic(), found)
        text = "\n".join([*kept[1], *requests.lines()]) + "\n"
        return Response(text, media_type=FORMAT)

    return HandlerRoute("GET", "/metrics", Role.VIEWER, metrics, str, "text/plain")


def _of_store(workspace: OpenWorkspace) -> Iterable[str]:
    store, now = workspace.store, datetime.now(UTC)
    counts = store.counts()
    yield from _head("rayjobs_jobs", "gauge", "Jobs by state.")
    for state in JobState:
        yield _line("rayjobs_jobs", counts.get(state, 0), state=str(state))
    waits: dict[str, list[float]] = defaultdict(list)
    found_waits = store.waits(since=now - RECENT, now=now, most=MOST_WAITS)
    for target, waited_s in found_waits.placed:
        waits[target].append(waited_s)
    yield from _head(
        "rayjobs_wait_seconds",
        "gauge",
        f"Waits of the jobs submitted in the last hour, of the newest {MOST_WAITS}.",
    )
    for target, found in sorted(waits.items()):
        found.sort()
        for quantile in QUANTILES:
            value = found[min(len(found) - 1, int(quantile * len(found)))]
            yield _line("rayjobs_wait_seconds", value, target=target, quantile=str(quantile))
    yield from _head(
        "rayjobs_waiting_seconds",
        "gauge",
        "Longest wait of jobs that wait only for resources.",
    )
    for target, at in sorted(found_waits.since.items()):
        yield _line("rayjobs_waiting_seconds", (now - at).total_seconds(), target=target)


async def _of_targets() -> list[str]:
    names = [one.name for one in await in_thread(targets.list_targets)]
    answers = await asyncio.gather(*(_status(name) for name in names))
    lines = _head("rayjobs_target_up", "gauge", "Whether the target answers.")
    up: dict[str, StatusAnswer] = {}
    for name, answer in zip(names, answers, strict=True):
        lines.append(_line("rayjobs_target_up", int(answer is not None), target=name))
        if answer is not None:
            up[name] = answer
    lines += _head("rayjobs_queue", "gauge", "Jobs that wait for a target, and that run on it.")
    for name, answer in up.items():
        for kind, number in (("waiting", len(answer.waiting)), ("live", len(answer.live))):
            lines.append(_line("rayjobs_queue", number, target=name, kind=kind))
    lines += _head("rayjobs_nodes", "gauge", "Live nodes.")
    lines += [_line("rayjobs_nodes", len(one.nodes), target=n) for n, one in up.items()]
    for resource in ("cpus", "gpus"):
        lines += _head(f"rayjobs_{resource}", "gauge", f"{resource} of the nodes: all, and used.")
        for name, answer in up.items():
            sizes = [_sizes(node)[resource] for node in answer.nodes]
            total, free = sum(one for one, _ in sizes), sum(one for _, one in sizes)
            lines.append(_line(f"rayjobs_{resource}", total, target=name, kind="total"))
            lines.append(_line(f"rayjobs_{resource}", total - free, target=name, kind="used"))
    return lines


async def _status(name: str) -> StatusAnswer | None:
    try:
        path = wake_client.socket_of(name, home())
        request = TargetRequest("status", keys=None)
        answer = await wake_client.ask_async(path, request, StatusAnswer, timeout_s=TARGET_S)
    except TimeoutError:
        return None
    return answer if answer is not None and answer.ok else None


def _sizes(node: NodeStatus) -> dict[str, tuple[float, float]]:
    """Return the total and the free amount of each resource of a node."""
    return {"cpus": (node.cpus, node.free_cpus), "gpus": (node.gpus, node.free_gpus)}


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _line(name: str, value: float, **labels: str) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
