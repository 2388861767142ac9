"""Ray's own records of submitted jobs, where its dashboard and `ray job` look for them.

Ray has no public interface for this: a record is a key of its control service, a log is a file of
a node's session. Everything that touches those internals is in this module. If a version of Ray
lacks them, `open_ray_jobs` raises UnsupportedRayError, and jobs run without being shown.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Protocol

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.lazy_dataclass import dataclass

# The key in a record's metadata that names its target. Records without it are left alone.
TARGET_KEY = "rayjobs_target"
OLDEST_RAY = (2, 52)
CALL_S = 10.0
AT_ONCE = 16
_OUR_LOG = re.compile(r"job-driver-[A-Za-z0-9_-]+_\d{9,}_[0-9a-f]{8}\.log")


class UnsupportedRayError(RayjobsError):
    """This version of Ray stores its job records in another form."""


@dataclass(frozen=True)
class Shown:
    """A job as Ray's Jobs page shows it.

    Attributes:
        status: One of Ray's: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED.
        start_ms: Unix time in milliseconds.
        node_id: Ray's id of the node that serves its log; empty while there is none.
    """

    entrypoint: str
    status: str
    message: str
    start_ms: int
    end_ms: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    node_id: str = ""

    @property
    def is_final(self) -> bool:
        """Whether Ray expects no other status after this one."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class JobRecords(Protocol):
    """Ray's job records of one target."""

    async def prime(self, node_ids: Iterable[str]) -> bool:
        """Make the job managers of these nodes check unfinished records; see `RayJobs.prime`."""
        ...

    async def entries(self) -> dict[str, Shown]:
        """Return this target's records by job id."""
        ...

    async def statuses(self, jobs: Iterable[str]) -> dict[str, str | None]:
        """Return the recorded status of each job; None: there is no record."""
        ...

    async def put(self, job: str, shown: Shown) -> None:
        """Write a record, or replace it."""
        ...

    async def delete(self, job: str) -> None:
        """Remove a record; does nothing if it does not exist."""
        ...


class _Info(Protocol):
    """The attributes of Ray's `JobInfo` that are read here."""

    entrypoint: str
    status: object
    message: str | None
    start_time: int | None
    end_time: int | None
    metadata: Mapping[str, str] | None
    driver_exit_code: int | None
    driver_node_id: str | None


class _JobInfoClient(Protocol):
    """The methods of Ray's `JobInfoStorageClient` that are called here."""

    async def get_all_jobs(self) -> Mapping[str, _Info]: ...

    async def get_status(self, job_id: str) -> object: ...

    async def put_info(self, job_id: str, job_info: object) -> bool: ...

    async def delete_info(self, job_id: str) -> bool: ...


class _ControlService(Protocol):
    """The method of the client of Ray's control service that is called here."""

    async def async_internal_kv_get(
        self, key: bytes, *, namespace: bytes, timeout: float
    ) -> bytes | None: ...


class RayJobs:
    """The job records of the cluster that this process is connected to."""

    def __init__(self, target: str, client: _JobInfoClient, gcs: _ControlService) -> None:
        self._target = target
        self._client = client
        self._gcs = gcs
        self._addresses: dict[str, str] = {}
        self._primed: set[str] = set()

    async def prime(self, node_ids: Iterable[str]) -> bool:
        """Make the nodes' job managers start before there are records that they would misjudge.

        A node starts its manager at the first request for a log. At its start, a manager marks as
        failed all unfinished records that have no supervisor of its own; later ones it leaves
        alone.

        Returns:
            Whether a manager was started, so that unfinished records must be checked again.
        """
        new = False
        for node_id in set(node_ids) - self._primed:
            address = await self._address(node_id)
            if address:
                self._primed.add(node_id)
                new = True
                await asyncio.to_thread(_ask_for_no_log, address)
        return new

    async def entries(self) -> dict[str, Shown]:
        """Return this target's records by job id."""
        found = await asyncio.wait_for(self._client.get_all_jobs(), CALL_S)
        return {
            str(job): _shown(info)
            for job, info in found.items()
            if (info.metadata or {}).get(TARGET_KEY) == self._target
        }

    async def statuses(self, jobs: Iterable[str]) -> dict[str, str | None]:
        """Return the recorded status of each job; None: there is no record."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(job: str) -> tuple[str, str | None]:
            async with gate:
                status = await asyncio.wait_for(self._client.get_status(job), CALL_S)
                return job, None if status is None else str(status)

        return dict(await asyncio.gather(*(one(job) for job in jobs)))

    async def put(self, job: str, shown: Shown) -> None:
        """Write a record, or replace it."""
        from ray.dashboard.modules.job.common import JobInfo

        address = await self._address(shown.node_id) if shown.node_id else ""
        info = JobInfo(
            entrypoint=shown.entrypoint,
            status=shown.status,  # a string, which JobInfo converts to its own enum
            message=shown.message,
            start_time=shown.start_ms,
            end_time=shown.end_ms,
            metadata={**shown.metadata, TARGET_KEY: self._target},
            driver_exit_code=shown.exit_code,
            driver_node_id=shown.node_id if address else None,
            driver_agent_http_address=address or None,
        )
        await asyncio.wait_for(self._client.put_info(job, info), CALL_S)

    async def delete(self, job: str) -> None:
        """Remove a record; does nothing if it does not exist."""
        await asyncio.wait_for(self._client.delete_info(job), CALL_S)

    async def _address(self, node_id: str) -> str:
        """Return the URL of a node's dashboard agent; empty if it has none yet."""
        if node_id not in self._addresses:
            from ray._private.ray_constants import KV_NAMESPACE_DASHBOARD
            from ray.dashboard.consts import DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX

            value = await asyncio.wait_for(
                self._gcs.async_internal_kv_get(
                    f"{DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX}{node_id}".encode(),
                    namespace=KV_NAMESPACE_DASHBOARD,
                    timeout=CALL_S,
                ),
                CALL_S,
            )
            if not value:
                return ""
            host, port = json.loads(value)[:2]
            self._addresses[node_id] = f"http://{_bracketed(str(host))}:{int(port)}"
        return self._addresses[node_id]


def open_ray_jobs(target: str) -> RayJobs:
    """Return the job records of the cluster that this process is connected to.

    Raises:
        UnsupportedRayError: this Ray does not have what is needed.
    """
    import inspect

    import ray

    version = str(ray.__version__)
    numbers = re.findall(r"\d+", version)[:2]
    if tuple(int(number) for number in numbers) < OLDEST_RAY:
        raise UnsupportedRayError(f"Ray {version} is older than {'.'.join(map(str, OLDEST_RAY))}")
    try:
        from ray._private.ray_constants import KV_NAMESPACE_DASHBOARD  # noqa: F401
        from ray.dashboard.consts import DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX  # noqa: F401
        from ray.dashboard.modules.job.common import (
            JOB_LOGS_PATH_TEMPLATE,
            JobInfo,
            JobInfoStorageClient,
        )

        gcs = ray._private.worker.global_worker.gcs_client
        client = JobInfoStorageClient(gcs)
        methods = ("put_info", "delete_info", "get_all_jobs", "get_status")
        are_coroutines = all(
            inspect.iscoroutinefunction(getattr(client, method)) for method in methods
        )
        names = {one.name for one in fields(JobInfo)}
        needed = {"entrypoint", "status", "message", "start_time", "end_time", "metadata"}
        needed |= {"driver_exit_code", "driver_node_id", "driver_agent_http_address"}
        if JOB_LOGS_PATH_TEMPLATE != "job-driver-{submission_id}.log":
            raise UnsupportedRayError(f"Ray {version} names the logs of jobs differently")
        if not are_coroutines or not needed <= names:
            raise UnsupportedRayError(f"Ray {version} stores job records in another form")
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedRayError(
            f"Ray {version} lacks the interface to job records: {error}"
        ) from error
    return RayJobs(target, client, gcs)


async def clear(target: str) -> int:
    """Remove all records of a target from the cluster; return how many there were.

    Raises:
        UnsupportedRayError: this Ray does not have what is needed.
    """
    records = open_ray_jobs(target)
    found = await records.entries()
    for job in found:
        await records.delete(job)
    return len(found)


def log_path(job: str) -> Path | None:
    """Return the file that this node serves as the log of a job; None if Ray has no such folder."""
    import ray

    try:
        folder = ray._private.worker._global_node.get_logs_dir_path()
    except AttributeError:
        return None
    return Path(folder) / f"job-driver-{job}.log"


def is_our_log(name: str) -> bool:
    """Whether a file in the session's logs has a name that `log_path` gave to a rayjobs job."""
    return _OUR_LOG.fullmatch(name) is not None


def _shown(info: _Info) -> Shown:
    given = info.metadata or {}
    metadata = {key: value for key, value in given.items() if key != TARGET_KEY}
    return Shown(
        entrypoint=info.entrypoint,
        status=str(info.status),
        message=info.message or "",
        start_ms=int(info.start_time or 0),
        end_ms=info.end_time,
        metadata=metadata,
        exit_code=info.driver_exit_code,
        node_id=info.driver_node_id or "",
    )


def _ask_for_no_log(address: str) -> None:
    """Request the log of a job that does not exist from a node's dashboard agent."""
    from ray._private.authentication.http_token_authentication import (
        get_auth_headers_if_auth_enabled,
    )

    request = urllib.request.Request(  # noqa: S310 - Ray gave the address, http://HOST:PORT
        f"{address}/api/job_agent/jobs/rayjobs-none/logs",
        headers=get_auth_headers_if_auth_enabled({}),
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(request, timeout=CALL_S).close()
    except (OSError, urllib.error.URLError):
        pass  # the expected answer is "not found"; after any other, records are checked again too


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
