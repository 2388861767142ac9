"""This machine's resources for a local target: cores, GPUs, memory. No third-party package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from rayjobs.core.errors import UsageError
from rayjobs.core.text import MIB
from rayjobs.injob.lazy_dataclass import dataclass

# Ray refuses a store below 75 MiB; ours carries only a few small messages.
SMALLEST_STORE = 80 * MIB
USUAL_STORE = 256 * MIB
MEMORY_SHARE = 0.95  # the rest is for the system
DEFAULT_IDLE_S = 1800.0


@dataclass(frozen=True)
class LocalSettings:
    """How a local head is started.

    Attributes:
        cpus: Logical CPUs that Ray offers.
        gpus: GPUs that Ray offers; in tests, perhaps more than the machine has.
        memory_bytes: Memory that Ray offers to reservations.
        object_store_bytes: Size of Ray's shared memory store.
        dashboard: Whether to start Ray's dashboard (most of the memory of an idle head).
        idle_s: Seconds without any job after which the head stops.
    """

    cpus: int
    gpus: int
    memory_bytes: int
    object_store_bytes: int
    idle_s: float
    dashboard: bool = True

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> LocalSettings:
        """Return this machine's resources, unless `RAYJOBS_LOCAL_*` variables say otherwise.

        Raises:
            UsageError: a variable is not a valid number.
        """
        store = int(
            _number(environment, "RAYJOBS_LOCAL_STORE_MIB", lambda: object_store_bytes() / MIB)
            * MIB
        )
        return cls(
            cpus=int(_number(environment, "RAYJOBS_LOCAL_CPUS", usable_cpus, least=1)),
            gpus=int(_number(environment, "RAYJOBS_LOCAL_GPUS", gpu_count)),
            memory_bytes=max(MIB, int(memory_limit_bytes() * MEMORY_SHARE) - store),
            object_store_bytes=store,
            idle_s=_number(environment, "RAYJOBS_LOCAL_IDLE_S", lambda: DEFAULT_IDLE_S),
            dashboard=_number(environment, "RAYJOBS_LOCAL_DASHBOARD", lambda: 1.0) > 0,
        )


def _number(
    environment: Mapping[str, str], name: str, default: Callable[[], float], least: float = 0.0
) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return float(default())
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < 1e9:
        raise UsageError(
            f"{name} is {text!r}; give a number of at least {least:g}, or unset it.",
            name=name,
        )
    return value


def usable_cpus() -> int:
    """Return how many CPUs this process may use: its affinity, within its cgroup's quota."""
    count = float(len(os.sched_getaffinity(0)))
    quota = _cpu_quota()
    return max(1, int(count if quota is None else min(count, quota)))


def _cpu_quota() -> float | None:
    words = _read("/sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return None


def memory_limit_bytes() -> int:
    """Return the memory of this machine or container."""
    total = 0
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdigit() and 0 < int(text) < (total or 2**60):
            total = int(text)
    return total


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that `CUDA_VISIBLE_DEVICES` leaves; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    # The driver lists its devices here; reading the list initializes nothing.
    listed = Path("/proc/driver/nvidia/gpus")
    try:
        return len(list(listed.iterdir()))
    except OSError:
        pass  # no driver, or a container that hides it
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        shown = subprocess.run([tool, "-L"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith(b"GPU ") for line in shown.stdout.splitlines())


def object_store_bytes() -> int:
    """Return a small store's size, if possible at most half of the free space of `/dev/shm`."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return SMALLEST_STORE
    return max(SMALLEST_STORE, min(USUAL_STORE, free // 2))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
