"""Checks whether other programs use the GPUs of an attempt."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rayjobs.core.text import MIB, duration_text, size_text
from rayjobs.injob.identity import is_alive
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.plan import LaunchPlan
from rayjobs.injob.processes import marker_of
from rayjobs.node.hosts import host_of

TOOL = "nvidia-smi"
ANSWER_S = 10.0
# The memory of a killed program is free only when the driver has removed its contexts.
PATIENCE_S = 15.0
LOOK_S = 0.5
# How many queries in a row must see memory without a visible owner: it may have been freed between
# two queries.
LOOKS = 3
# The driver and a display use less.
UNSEEN_MIB = 1024


class CannotTellError(Exception):
    """The processes that use the GPUs cannot be determined."""


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU.

    Attributes:
        pid: 0 if the driver does not report it.
        mib: Its memory; not a number if the driver does not report it.
    """

    pid: int
    program: str
    mib: str
    gpu: str = ""

    @property
    def marker(self) -> str:
        """Its attempt; empty for a program of another user or outside any job."""
        return marker_of(self.pid)

    @property
    def is_here(self) -> bool:
        """Whether it is visible: running, and neither in another container nor outside this one."""
        return Path(f"/proc/{self.pid}").exists()

    @property
    def is_ending(self) -> bool:
        """Whether it has released its own memory but has not quite exited."""
        try:
            return Path(f"/proc/{self.pid}/statm").read_text().split()[0] == "0"
        except OSError:
            return False

    def __str__(self) -> str:
        """Return a description for users."""
        about = [Path(self.program).name]
        if not self.is_here:
            about.append("not visible here")
        elif marker := self.marker:
            about.append(f"of {marker}, which does not share this GPU")
        held = size_text(int(self.mib) * MIB) if self.mib.isdigit() else "memory, amount unknown"
        return f"pid {self.pid or 'unknown'} ({', '.join(about)}) holds {held}"


@dataclass(frozen=True)
class Look:
    """The programs that hold memory of some GPUs without a share in them.

    Attributes:
        unseen_mib: By GPU, memory that no visible process holds, if it is a large amount.
    """

    others: tuple[Holder, ...]
    unseen_mib: Mapping[str, int]

    @property
    def may_pass(self) -> bool:
        """Whether no visible process remains that holds the GPUs."""
        return not any(one.is_here for one in self.others)


async def wait_until_free(
    devices: Collection[str], attempts: Path, report: Callable[[str], None]
) -> None:
    """Wait briefly for programs that exit, and report the others; the job starts anyway.

    Args:
        devices: The GPUs, as in CUDA_VISIBLE_DEVICES.
        attempts: The folder of the node's attempts, some of which may share them.
        report: Called with each warning, including that the GPUs could not be checked.
    """
    if not devices:
        return
    clock = asyncio.get_running_loop().time
    end_s, looks = clock() + PATIENCE_S, 0
    which = f"GPU {','.join(devices)}"
    while True:
        try:
            look = await _look(devices, attempts)
        except CannotTellError as error:
            report(f"whether others use {which} could not be checked: {error}")
            return
        if not look.others and not look.unseen_mib:
            return
        looks = looks + 1 if look.may_pass else 0
        waits = any(one.is_ending for one in look.others) and clock() < end_s
        if not waits and not 0 < looks < LOOKS:
            break
        await asyncio.sleep(LOOK_S)
    if look.others:
        report(
            f"{which} is used by programs that do not belong to the job: "
            f"{'; '.join(map(str, look.others))}. The job may find too little memory there"
        )
    for gpu, mib in look.unseen_mib.items():
        report(
            f"GPU {gpu}: {size_text(mib * MIB)} are in use, but not by a process visible here: a "
            "program in another container uses them, or one that has ended did not free them. The "
            "job may find too little memory"
        )


async def _look(devices: Collection[str], attempts: Path) -> Look:
    """Return the programs on the GPUs that have no share in them.

    Raises:
        CannotTellError: It cannot be determined.
    """
    if shutil.which(TOOL) is None:
        raise CannotTellError(f"PATH has no {TOOL}")
    # Await both even if one fails: no query of the tool outlives this call.
    answers = await asyncio.gather(
        _asked(devices, "--query-gpu=index,uuid,memory.used", columns=3),
        _asked(devices, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", columns=4),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    gpus, holders = (answer for answer in answers if not isinstance(answer, BaseException))
    names = {uuid: {index, uuid} for index, uuid, _ in gpus}
    found = [
        Holder(int(pid) if pid.isdigit() else 0, program, mib, uuid)
        for uuid, pid, mib, program in holders
    ]
    given = await asyncio.to_thread(_given, attempts) if found else {}
    others = tuple(
        one for one in found if not names.get(one.gpu, {one.gpu}) & given.get(one.marker, set())
    )
    unseen = {}
    for index, uuid, used in gpus:
        counted_mib = [one.mib for one in found if one.gpu == uuid]
        if not used.isdigit():
            raise CannotTellError(f"{TOOL} prints {used!r} as the memory of GPU {index}")
        if all(mib.isdigit() for mib in counted_mib):
            left = int(used) - sum(map(int, counted_mib))
            if left >= UNSEEN_MIB:
                unseen[index] = left
    return Look(others, unseen)


def _given(attempts: Path) -> dict[str, set[str]]:
    """Return the GPUs of this node's living attempts, by their markers."""
    given = {}
    for path in attempts.glob("*/a*/plan.json"):
        try:
            plan = LaunchPlan.read(str(path.parent))
        except (OSError, ValueError):
            continue  # it is being written
        host = host_of(str(path.parent))
        if plan is not None and host is not None and is_alive(host.identity):
            given[plan.marker] = set(plan.env.get("CUDA_VISIBLE_DEVICES", "").split(","))
    return given


async def _asked(devices: Collection[str], query: str, *, columns: int) -> list[list[str]]:
    """Return the lines of the tool's output, split into columns.

    Raises:
        CannotTellError: there is no output, or it is not readable.
    """
    try:
        tool = await asyncio.create_subprocess_exec(
            TOOL,
            f"--id={','.join(devices)}",
            query,
            "--format=csv,noheader,nounits",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise CannotTellError(f"{TOOL} cannot be run: {error.strerror}") from error
    try:
        output, _ = await asyncio.wait_for(tool.communicate(), ANSWER_S)
    except TimeoutError as error:
        raise CannotTellError(f"{TOOL} did not answer within {duration_text(ANSWER_S)}") from error
    finally:
        if tool.returncode is None:
            tool.kill()
            await tool.wait()
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    if tool.returncode != 0:
        why = lines[0].strip() if lines else "no message"
        raise CannotTellError(f"{TOOL} exited with code {tool.returncode}: {why}")
    table = [line.split(", ", columns - 1) for line in lines]
    for line, words in zip(lines, table, strict=True):
        if len(words) != columns:
            raise CannotTellError(f"{TOOL} prints the unexpected line {line!r}")
    return table
