"""Samples an attempt's use of CPU, memory and GPUs on its node, at a bounded cost and size.

The host takes the samples in its own loop. It measures their cost and samples less often where a
sample is expensive, to stay below `SHARE` of a core. It keeps at most `POINTS` points for a run of
any length: when they are full, pairs are merged and the interval doubles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import field
from typing import Dict, List, Optional, Tuple

from rayjobs.injob import cgroups, kernel, record_files
from rayjobs.injob.exit_record import GpuUse, UsageRecord
from rayjobs.injob.files import write_atomic
from rayjobs.injob.identity import ProcessStat
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.memory import proportional_bytes
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.tree import Tree

POINTS = 240
EVERY_S = 1.0
FIRST_S = 0.25  # so that a job of one second has a sample of its memory
SHARE = 0.003  # share of a core, for all samples together
GPU_EVERY_S = 10
FILE = "usage.json"
_FILE_BYTES = 1024**2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GPU_QUERY = "index,uuid,utilization.gpu,memory.used"


@dataclass
class _Sample:
    """One point in time: seconds since the start, cores, bytes; of each GPU percent and bytes."""

    t: float
    cpu: float
    memory: int
    gpus: Dict[str, Tuple[float, float]] = field(default_factory=dict)

    def gpu(self, name: str, at: int) -> Optional[float]:
        """Return a GPU's use (0) or memory (1); None where it was not measured."""
        pair = self.gpus.get(name)
        return None if pair is None else pair[at]


class Usage:
    """The samples of one attempt on one node."""

    def __init__(self, plan: LaunchPlan, tree: Tree) -> None:
        """Start without samples; `turn` takes them."""
        self._plan = plan
        self._tree = tree
        self._every_s = EVERY_S
        self._began_s = time.monotonic()
        self._next_s = self._began_s + FIRST_S
        self._began_at = time.time()
        self._points: List[_Sample] = []
        self._peak_bytes = 0
        self._cost_s = 0.0
        self._cpu_s = 0.0
        self._seen: Dict[int, Tuple[int, float]] = {}  # pid: start time, CPU seconds
        self._last: Optional[Tuple[float, float]] = None  # time, CPU seconds of the whole tree
        self._how = ""
        self._gpu: Optional[subprocess.Popen[bytes]] = None
        self._gpu_text = b""
        self._gpu_now: Dict[str, Tuple[float, float]] = {}
        self._is_over = False

    def start(self) -> None:
        """Start the program that watches the attempt's GPUs, if it has any."""
        devices = self._plan.env.get("CUDA_VISIBLE_DEVICES", "")
        if not devices.strip():
            return
        words = ["nvidia-smi", f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader,nounits"]
        words += ["-i", devices, "-l", str(GPU_EVERY_S)]
        try:
            # With an empty environment: without the marker it does not count as the attempt's.
            self._gpu = subprocess.Popen(
                words,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                close_fds=True,
                start_new_session=True,
                preexec_fn=_die_with_host,
            )
        except (OSError, subprocess.SubprocessError):
            return  # no driver program here: GPUs are not watched
        assert self._gpu.stdout is not None
        os.set_blocking(self._gpu.stdout.fileno(), False)
        self._tree.helpers.add(self._gpu.pid)

    def abandon(self) -> None:
        """Close the descriptors that a forked process must not keep."""
        if self._gpu is not None and self._gpu.stdout is not None:
            os.close(self._gpu.stdout.fileno())

    def turn(self) -> None:
        """Take a sample if one is due. Never raises: a lost sample must not end an attempt."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._is_over:
            return
        began_s = time.thread_time()
        try:
            self._sample(now_s)
            self._write()
        except (OSError, ValueError):
            pass  # a full disk, or a process that ended meanwhile: skip this sample
        cost_s = time.thread_time() - began_s
        self._cost_s += cost_s
        self._next_s = now_s + max(self._every_s, cost_s / SHARE)

    def _sample(self, now_s: float) -> None:
        cpu_s = self._cpu_seconds()
        used_bytes = self._memory_bytes()
        self._peak_bytes = max(self._peak_bytes, used_bytes)
        self._read_gpus()
        before = self._last
        self._last = (now_s, cpu_s)
        if before is None:
            before = (self._began_s, 0.0)
        cores = max(0.0, cpu_s - before[1]) / max(1e-3, now_s - before[0])
        if self._points and not used_bytes:
            return  # everything has ended: only its CPU time counts
        self._points.append(
            _Sample(
                round(now_s - self._began_s, 2),
                round(cores, 3),
                used_bytes,
                dict(sorted(self._gpu_now.items())),
            )
        )
        if len(self._points) >= POINTS:
            self._points = [
                _merged(*self._points[at : at + 2]) for at in range(0, len(self._points) - 1, 2)
            ]
            self._every_s *= 2

    # -- CPU and memory ---------------------------------------------------------------------------
    def _cpu_seconds(self) -> float:
        folder = self._tree.cgroup
        if folder is not None:
            used = cgroups.value(folder, "cpu.stat", "usage_usec")
            if used is not None:
                self._cpu_s = used / 1e6
                return self._cpu_s
        seen: Dict[int, Tuple[int, float]] = {}
        for one in self._members():
            spent_s = one.cpu_ticks / _TICKS_PER_S
            start, before_s = self._seen.get(one.pid, (one.start_time, 0.0))
            if start != one.start_time:
                before_s = 0.0
            self._cpu_s += max(0.0, spent_s - before_s)
            seen[one.pid] = (one.start_time, spent_s)
        self._seen = seen
        return self._cpu_s

    def _memory_bytes(self) -> int:
        folder = self._tree.cgroup
        if folder is not None:
            text = cgroups.read(folder, "memory.current")
            if text is not None and text.strip().isdigit():
                # Without cached files, which the kernel drops under memory pressure.
                idle = cgroups.value(folder, "memory.stat", "inactive_file") or 0
                self._how = "cgroup"
                return max(0, int(text) - idle)
        # Shared pages are divided among their users: ranks share their warm interpreter's pages.
        self._how = "proportional"
        return sum(proportional_bytes(one.pid) for one in self._members())

    def _members(self) -> List[ProcessStat]:
        # The last sample is taken when most attempts have ended: no need to search all processes.
        return [] if self._tree.is_empty_quickly() else self._tree.contained()

    # -- GPUs -------------------------------------------------------------------------------------
    def _read_gpus(self) -> None:
        if self._gpu is None or self._gpu.stdout is None:
            return
        try:
            self._gpu_text += os.read(self._gpu.stdout.fileno(), 64 * 1024)
        except (BlockingIOError, OSError):
            return
        *lines, self._gpu_text = self._gpu_text[-16_384:].split(b"\n")
        for line in lines:
            fields = [field.strip() for field in line.decode("utf-8", "replace").split(",")]
            if len(fields) == 4:
                self._gpu_now[fields[0]] = (_number(fields[2]), _number(fields[3]) * 2**20)

    def stop(self) -> None:
        """Take the last sample and end what `start` started. Idempotent."""
        if not self._is_over:
            self._next_s = 0.0
            self.turn()
            self._is_over = True
        if self._gpu is not None:
            try:
                os.kill(self._gpu.pid, signal.SIGKILL)
                # Never wait: a driver may hold it in the kernel. The host reaps it later.
                os.waitpid(self._gpu.pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass  # it has ended, and the host has reaped it
            if self._gpu.stdout is not None:
                self._gpu.stdout.close()
            self._gpu.returncode = 0
            self._gpu = None

    # -- the record -------------------------------------------------------------------------------
    def as_record(self) -> UsageRecord:
        """Return the `usage` entry of an exit record."""
        points = self._points
        names = sorted({name for point in points for name in point.gpus})
        return UsageRecord(
            began_at=self._began_at,
            every_s=self._every_s,
            peak_bytes=self._peak_bytes or None,
            memory_how=self._how,
            cpu_s=round(self._cpu_s, 3),
            cost_s=round(self._cost_s, 4),
            t=tuple(point.t for point in points),
            cpu=tuple(point.cpu for point in points),
            memory=tuple(point.memory for point in points),
            gpus={
                name: GpuUse(
                    tuple(point.gpu(name, 0) for point in points),
                    tuple(point.gpu(name, 1) for point in points),
                )
                for name in names
            },
            node=self._plan.node,
        )

    def _write(self) -> None:
        text = json.dumps(self.as_record().to_json())
        write_atomic(os.path.join(self._plan.root, FILE), text)


def read(root: str) -> Optional[UsageRecord]:
    """Return an attempt host's samples so far; None if there are no readable ones."""
    try:
        record = UsageRecord.from_json(record_files.read_json(root, FILE, _FILE_BYTES))
    except (OSError, ValueError):
        return None  # jobs can write there too
    return record if record.is_whole else None


def _die_with_host() -> None:
    kernel.die_with_parent(signal.SIGKILL)


def _merged(one: _Sample, other: _Sample) -> _Sample:
    """Merge two samples: mean CPU and GPU use, the larger memory, the later time."""
    gpus: Dict[str, Tuple[float, float]] = {}
    for name, pair in {**one.gpus, **other.gpus}.items():
        before = one.gpus.get(name, pair)
        gpus[name] = (round((before[0] + pair[0]) / 2, 1), max(before[1], pair[1]))
    cpu = round((one.cpu + other.cpu) / 2, 3)
    return _Sample(other.t, cpu, max(one.memory, other.memory), gpus)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0  # "[N/A]": the driver does not measure this
