"""Environments: first and second use against `uv`, conda against py-rattler alone, and 20 jobs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, median
from rayjobs.environments.settings import find_uv
from tests.support.conda_channel import Channel
from tests.support.wheels import make_wheel
from tests.unit.environments.conftest import Builder

PACKAGES = ("tiny-a", "tiny-b", "tiny-c")
JOBS = 20
# What a separate program does with py-rattler: install the packages of a lock.
_ALONE = """
import asyncio, os, sys
from pathlib import Path
import rattler
from rattler.lock import LockFile
found = LockFile.from_path(Path(sys.argv[1])).default_environment().conda_repodata_records()
records = [one for platform in found.values() for one in platform]
asyncio.run(rattler.install(records, target_prefix=sys.argv[2], cache_dir=Path(sys.argv[3]),
    show_progress=False, execute_link_scripts=False))
os._exit(0)
"""


def measure(*, rounds: int) -> list[Figure]:
    """Measure all; ours and the peer alternate, each with its own cache, empty at first."""
    with tempfile.TemporaryDirectory(prefix="rj-", dir="/tmp") as name:
        folder = Path(name)
        wheels = folder / "wheels"
        for package in PACKAGES:
            make_wheel(wheels, package)
        first, second, uv, conda, alone, builds = [], [], [], [], [], []
        for number in range(rounds):
            home = folder / str(number)
            home.mkdir()
            uv.append(_by_uv(home, wheels))
            builder = Builder(home / "node")
            first.append(_use(builder, wheels, home / "cache"))
            second.append(_use(builder, wheels, home / "cache"))
            ours, peer = _conda(home)
            conda.append(ours)
            alone.append(peer)
            builds.append(_twenty(Builder(home / "shared"), wheels))
    return [
        Figure(
            "environment: first use of 3 small pip packages",
            "s",
            median(first),
            median(uv),
            "uv venv && uv pip install",
            slower=1.2,
        ),
        Figure("environment: second use", "s", median(second), most=0.05),
        Figure(
            "environment: conda packages of a lock",
            "s",
            median(conda),
            median(alone),
            "py-rattler",
            slower=1.3,
        ),
        Figure(f"environment: builds for {JOBS} jobs at once", "", median(builds), most=1),
    ]


def _lines(wheels: Path) -> list[str]:
    return ["--no-index", f"--find-links {wheels}", *PACKAGES]


def _use(builder: Builder, wheels: Path, cache: Path) -> float:
    os.environ["UV_CACHE_DIR"] = str(cache)
    wish = builder.wish()
    environments = builder.environments()
    began = time.perf_counter()
    asyncio.run(environments.realise({"pip": _lines(wheels), "python": None}, wish.work))
    return time.perf_counter() - began


def _by_uv(home: Path, wheels: Path) -> float:
    env = {**os.environ, "UV_CACHE_DIR": str(home / "peer-cache")}
    venv = home / "peer"
    began = time.perf_counter()
    for command in (
        [find_uv(), "venv", "--quiet", "--python", sys.executable, str(venv)],
        [find_uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python",
         str(venv / "bin" / "python"), "--no-index", "--find-links", str(wheels), *PACKAGES],
    ):  # fmt: skip
        subprocess.run(command, env=env, check=True)
    return time.perf_counter() - began


def _conda(home: Path) -> tuple[float, float]:
    """Return the seconds of an installation from a known lock, ours and py-rattler's alone."""
    channel = Channel(home / "channel")
    for package in PACKAGES:
        channel.add_library(package)
    channel.index()
    request = {"conda": list(PACKAGES), "channels": [channel.url], "pip": [], "python": None}
    known = Builder(home / "solved")
    wish = known.wish()
    lock = asyncio.run(known.environments().realise(request, wish.work)).lock
    builder = Builder(home / "conda")
    work = builder.wish(known_lock=lock).work
    began = time.perf_counter()
    asyncio.run(builder.environments().realise(request, work))
    ours = time.perf_counter() - began
    from rayjobs.environments import condas

    file = home / "conda.lock"
    file.write_text(condas.split(lock)[0])
    command: Sequence[str] = [
        *(sys.executable, "-c", _ALONE, str(file), str(home / "alone"), str(home / "packages"))
    ]
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return ours, time.perf_counter() - began


def _twenty(builder: Builder, wheels: Path) -> float:
    """Return how often an environment is built for 20 jobs that start at once."""

    async def all_at_once() -> int:
        request = {"pip": _lines(wheels), "python": None}
        found = await asyncio.gather(
            *(builder.environments().realise(request, builder.wish().work) for _ in range(JOBS))
        )
        return sum(one.built for one in found)

    return float(asyncio.run(all_at_once()))


if __name__ == "__main__":
    print(json.dumps([(one.name, one.ours, one.peer) for one in measure(rounds=3)]))
