"""One Ray head per user and home: its settings, its record, its processes. No import of ray."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from rayjobs.core.errors import TargetError
from rayjobs.core.files import read_json, read_message, write_private
from rayjobs.core.paths import PACKAGE, TargetPaths, runtime_dir
from rayjobs.injob.identity import Identity, identity_of, is_alive, stat_of
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.injob.processes import all_pids, descendants
from rayjobs.target.machine import LocalSettings
from rayjobs.target.standing import HEAD_ENVIRONMENT

# The longest path below Ray's folder that must fit into a socket's 107 bytes:
# session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store
LONGEST_RAY_SOCKET = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
LOCAL = "local"
EXIT_LATE = 75  # exit code of the starter: Ray did not start in time (EX_TEMPFAIL)
SILENT_S = 600  # how long a process of a head may be silent
RAY_UP_S = 120  # Ray's own 30 s are not enough on a busy machine

# The variables that a target inherits from the shell that starts it. It gets no others, since it
# outlives that shell and serves others. Credentials come through `target.secrets`.
_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "HOSTNAME"),
        *("LD_LIBRARY_PATH", "CPATH", "LIBRARY_PATH", "PKG_CONFIG_PATH"),
        *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC", "OPAL_PREFIX"),
        # The sources of the usual AWS search, without the keys themselves.
        *("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE"),
        *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
        *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED"),
    }
)
_KEPT_PREFIXES = (
    *("LC_", "XDG_", "SSL_CERT_", "NVIDIA_", "CUDA_", "ROCR_", "NCCL_", "GLOO_", "OMPI_"),
    *("RAYJOBS_", "DATASTORE_", "HOROVOD_", "UV_", "PIP_", "CONDA_"),
)
_SETTINGS = "RAYJOBS_LOCAL_"
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
# The exceptions: what belongs to one shell or one job, and what holds a secret.
_DROPPED = frozenset({"RAYJOBS_WORKSPACE", "RAYJOBS_RUN_ID", "RAYJOBS_MARKER"})
_PASSWORD = re.compile(r"://[^/@\s]+@")  # in the address of a package index
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS(?:$|[_\d])|PWD"
    r"|TOKEN(?!_FILE$)|CREDENTIAL(?!S_)|_KEY$|APIKEY"
)


@dataclass(frozen=True, kw_only=True)
class HeadRecord(Message):
    """A running head (`head.json`). It contains no secret, only the path of the token file.

    Attributes:
        instance: Random name of this run of the head.
        node_ip: The loopback address of Ray's node.
        gcs_address: What `ray.init(address=…)` takes.
        dashboard_url: The dashboard's address; empty: switched off.
        temp_dir: Ray's folder, removed when the head stops.
        node_id: Ray's id of the head node.
        gpus: GPUs offered (whole devices).
        memory_bytes: Memory offered to reservations.
        processes: The processes at the start of the head, by name.
    """

    instance: str
    node_ip: str
    gcs_address: str
    dashboard_url: str
    temp_dir: str
    node_id: str
    token_path: str
    cpus: float
    gpus: float
    memory_bytes: int
    ray_version: str
    rayjobs_version: str
    processes: Mapping[str, Identity] = field(default_factory=dict)

    def identity(self, name: str) -> Identity | None:
        """Return the identity of the process `name` ("gcs_server", "raylet", …) of this head."""
        return self.processes.get(name)

    @property
    def is_running(self) -> bool:
        """Whether both essential processes are alive."""
        owners = (self.identity("gcs_server"), self.identity("raylet"))
        return all(owner is not None and is_alive(owner) for owner in owners)


def remember_settings(paths: TargetPaths, environment: Mapping[str, str]) -> None:
    """Store the ``RAYJOBS_LOCAL_*`` variables of a head that starts.

    A restart after a crash uses them: it may come from another shell, which does not have them.

    Raises:
        OSError: They cannot be written.
    """
    kept = {name: value for name, value in environment.items() if name.startswith(_SETTINGS)}
    write_private(paths.local_settings, json.dumps(kept))


def with_settings(paths: TargetPaths, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environment` and those of the head's stored variables that it does not set."""
    kept = read_json(paths.local_settings)
    if not kept:
        return environment
    return {**{name: str(value) for name, value in kept.items()}, **environment}


def load_record(paths: TargetPaths) -> HeadRecord | None:
    """Return the record of the head that runs or ran last, or None.

    None also for the unreadable record of another version: the head's processes are then found by
    its folder.
    """
    return read_message(paths.head, HeadRecord)


def save_record(paths: TargetPaths, record: HeadRecord) -> None:
    """Write `head.json`."""
    write_private(paths.head, json.dumps(record.to_json(), indent=1) + "\n")


def ray_folder(home: Path) -> Path:
    """Return the short folder that a local head of this home uses.

    Raises:
        TargetError: the folder's name is too long for Ray's sockets.
    """
    folder = runtime_dir(home, create=False) / "r"
    if len(os.fsencode(folder)) + LONGEST_RAY_SOCKET > 107:
        raise TargetError(
            f"Ray's sockets below {folder} would have longer names than the 107 bytes that Unix "
            f"allows. Set RAYJOBS_RUNTIME_BASE to a shorter folder, for instance /tmp."
        )
    return folder


def node_ip(home: Path) -> str:
    """Return a loopback address for this home alone, which separates two heads."""
    digest = hashlib.sha256(str(home).encode()).digest()
    # 127.0.0.x is left to the system: Ray replaces 127.0.0.1 with the machine's external address.
    return f"127.{1 + digest[0] % 254}.{digest[1]}.{1 + digest[2] % 254}"


def new_token(paths: TargetPaths) -> None:
    """Make Ray's token file (0600) with 256 new random bits; each start of a head makes one."""
    write_private(paths.token, secrets.token_hex(32))


def auth_environment(token_path: Path | str | None) -> dict[str, str]:
    """Return the variables that make a Ray process require and send the token; None: no token."""
    if token_path is None:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def head_environment(
    home: Path, token_path: Path | str | None, *, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of the keeper, of Ray and of Ray's processes: an allow-list."""
    kept = {name: value for name, value in base.items() if is_kept(name, value)}
    source = str(PACKAGE.resolve().parent)
    if source in base.get("PYTHONPATH", "").split(os.pathsep):
        kept["PYTHONPATH"] = source  # if run from a source tree that is not installed
    return kept | {
        "RAYJOBS_HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_raylet_start_wait_time_s": str(RAY_UP_S),
        "RAY_gcs_server_port_wait_time_s": str(RAY_UP_S),
        "RAY_agent_register_timeout_ms": str(1000 * RAY_UP_S),
        "RAY_worker_register_timeout_seconds": str(RAY_UP_S),
        # Ray would give up its only node, with everything that runs there, if the node is too busy
        # to answer for a minute. The keeper itself sees whether the GCS or the raylet has ended.
        "RAY_health_check_timeout_ms": str(1000 * SILENT_S),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(SILENT_S),
        # Ray's default is a fixed port, which the second head of a machine would find in use.
        "DASHBOARD_METRIC_PORT": str(free_port()),
        # Ray would kill workers, which use little memory, because of the memory of ranks.
        "RAY_memory_monitor_refresh_ms": "0",
        # We assign devices to ranks; Ray must not hide them from processes without GPUs.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **HEAD_ENVIRONMENT,
        **auth_environment(token_path),
    }


def is_kept(name: str, value: str) -> bool:
    """Whether a target inherits a variable of its starting shell: it is known and not a secret."""
    if name.lower() in _PROXIES:
        return "@" not in value  # with or without a password, and also without http://
    if name in _KEPT:
        return True
    is_ours = name.startswith(_KEPT_PREFIXES) and name not in _DROPPED
    return is_ours and not _SECRET.search(name.upper()) and not _PASSWORD.search(value)


def proxies_with_password(environment: Mapping[str, str]) -> set[str]:
    """Return the variables of proxies that a target does not keep, but jobs may need."""
    return {
        name
        for name, value in environment.items()
        if name.lower() in _PROXIES and not is_kept(name, value)
    }


class StartError(TargetError):
    """A target could not be started; `message` is `cause` and `advice`.

    Attributes:
        cause: What failed, in full sentences.
        advice: What to do next; empty if the cause says it.
    """

    def __init__(self, cause: str, *, advice: str = "") -> None:
        super().__init__(f"{cause} {advice}".rstrip())
        self.cause = cause
        self.advice = advice

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_start_error, (type(self), self.cause, self.advice)


def _rebuild_start_error(kind: type[StartError], cause: str, advice: str) -> StartError:
    return kind(cause, advice=advice)


def start_again(name: str) -> str:
    """Return the advice after a failed start: what to do next."""
    return f"Jobs that were submitted stay queued; run `rayjobs target start {name}`."


def free_port() -> int:
    """Return a TCP port on which no process listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def head_arguments(settings: LocalSettings, *, ip: str, folder: Path) -> list[str]:
    """Return the options of `ray start`. The kernel chooses every port, so none can be in use."""
    options = {
        "node-ip-address": ip,
        "port": 0,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": 0,
        "dashboard-agent-listen-port": 0,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "temp-dir": folder,
        "num-cpus": settings.cpus,
        "num-gpus": settings.gpus,
        "memory": settings.memory_bytes,
        "object-store-memory": settings.object_store_bytes,
        "include-dashboard": str(settings.dashboard).lower(),
        # No process follows the files with the workers' output.
        "include-log-monitor": "false",
        "log-style": "record",
        "log-color": "false",
    }
    flags = ["--head", "--disable-usage-stats", "--no-monitor"]  # one node: nothing to scale
    return [*flags, *(f"--{name}={value}" for name, value in options.items())]


def processes_of(folder: Path) -> Iterator[Identity]:
    """Find the Ray processes of the head whose folder is `folder`, by identity.

    A process belongs to the head if its command line names the folder, if it has a file in the
    folder open, or if it descends from such a process within Ray. The open files are needed because
    Ray hides command lines (it renames its workers). This does not find the processes of attempts,
    which are outside Ray.
    """
    wanted = os.fsencode(f"{folder}/")
    found: set[int] = set()
    for pid in all_pids():
        if pid != os.getpid() and (_named(pid, wanted) or _holds(pid, wanted)):
            found.add(pid)
    for pid in list(found):
        found.update(stat.pid for stat in descendants(pid) if _is_rays(stat.pid))
    for pid in found:
        stat = stat_of(pid)
        identity = identity_of(pid)
        if stat is not None and identity is not None and not stat.is_dead:
            yield identity


def command_of(pid: int) -> bytes:
    """Return a process's command line, its words ended by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _named(pid: int, wanted: bytes) -> bool:
    command = command_of(pid)
    return wanted in command and _ray_command(command)


def _is_rays(pid: int) -> bool:
    return _ray_command(command_of(pid))


def _ray_command(command: bytes) -> bool:
    return (
        command.startswith((b"ray::", b"ray-dashboard"))
        or b"/ray/" in command
        or b"'ray'" in command  # the dashboard's fork server
    )


def _holds(pid: int, wanted: bytes) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False  # it ended, or it is another user's
    for name in names:
        try:
            if os.fsencode(os.readlink(f"{folder}/{name}")).startswith(wanted):
                return _is_rays(pid)
        except OSError:
            continue
    return False
