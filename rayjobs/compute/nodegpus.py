"""Whether the GPUs that an attempt is given are free of programs that are none of the queue's."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rayjobs.injob.processes import MARKER_VARIABLE

log = logging.getLogger(__name__)

TOOL = "nvidia-smi"
ANSWER_S = 10.0
# A killed program gives its memory back only when the driver has put its contexts away.
PATIENCE_S = 15.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU."""

    pid: int
    program: str
    mib: str

    @property
    def is_ours(self) -> bool:
        """Whether it is a job's: jobs may share a GPU, and one that has ended holds none."""
        try:
            return f"{MARKER_VARIABLE}=".encode() in Path(f"/proc/{self.pid}/environ").read_bytes()
        except OSError:
            return False

    @property
    def is_ending(self) -> bool:
        """Whether it has no memory of its own any more, or is gone altogether."""
        try:
            return Path(f"/proc/{self.pid}/statm").read_text().split()[0] == "0"
        except OSError:
            return True

    def __str__(self) -> str:
        """Return it for people."""
        return f"pid {self.pid} ({Path(self.program).name}) holds {self.mib} MiB"


async def wait_until_free(devices: Collection[str], tell: Callable[[str], None]) -> None:
    """Wait a little for programs that end, and tell of those that stay; the job starts anyway."""
    if not devices or shutil.which(TOOL) is None:
        return
    clock = asyncio.get_running_loop().time
    end_s = clock() + PATIENCE_S
    while others := [one for one in await _holders(devices) if not one.is_ours]:
        if clock() >= end_s or not any(one.is_ending for one in others):
            tell(
                f"GPU {','.join(devices)} is used by programs that are no jobs: "
                f"{'; '.join(map(str, others))}. The job may find too little memory there"
            )
            return
        await asyncio.sleep(LOOK_S)


async def _holders(devices: Collection[str]) -> list[Holder]:
    """Return who holds memory of some GPUs; nobody where that cannot be told."""
    tool = await asyncio.create_subprocess_exec(
        TOOL,
        f"--id={','.join(devices)}",
        "--query-compute-apps=pid,used_memory,process_name",
        "--format=csv,noheader,nounits",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(tool.communicate(), ANSWER_S)
    except TimeoutError:
        log.warning("%s did not answer within %g s", TOOL, ANSWER_S)
        return []
    finally:
        if tool.returncode is None:
            tool.kill()
            await tool.wait()
    lines = [line.split(", ", 2) for line in said.decode(errors="replace").splitlines()]
    if tool.returncode != 0:
        log.info("%s: %s", TOOL, said.decode(errors="replace").strip())
        return []
    return [
        Holder(int(words[0]), words[2], words[1])
        for words in lines
        if len(words) == 3 and words[0].isdigit()
    ]
