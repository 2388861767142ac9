"""What an attempt runs on: interpreter, packages, drivers, machine. Determined once and cached.

The attempt's own interpreter lists its packages, once per environment: the list is kept in a file
named by the interpreter and the times of its package folders. No error here fails an attempt;
``why`` says what could not be determined.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rayjobs.core.files import write_atomic
from rayjobs.environments.packages_probe import PROBE

log = logging.getLogger(__name__)

FORMAT = 1
PROBE_S = 20.0  # for a slow disk; the next attempt then tries again
GPU_S = 10.0
GPU_AGAIN_S = 600.0  # GPUs and drivers of a machine change when it restarts


class NodeFacts:
    """Determines and caches what attempts of this node run on. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Keep package lists in `folder`, which need not exist."""
        self._folder = folder
        self._lock = threading.Lock()
        self._gpus: tuple[float, list[dict[str, Any]], str] | None = None

    def of(
        self, python: str, devices: Sequence[str], known: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the facts of an attempt; `packages` are (name, version) pairs. Blocks.

        Args:
            python: The interpreter that its ranks run.
            devices: Ids of its GPUs; empty for none.
            known: What the interpreter, which is in an image, has already reported.
        """
        found: dict[str, Any] = {**_machine(), "interpreter": python}
        why = []
        try:
            found.update(self._environment(Path(python)) if known is None else known)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why.append(f"packages are unknown: {error}"[:300])
        if devices:
            gpus, reason = self._all_gpus()
            found["gpus"] = [
                one for one in gpus if str(one["index"]) in devices or one["uuid"] in devices
            ]
            if reason:
                why.append(reason)
        if why:
            found["why"] = "; ".join(why)
        return found

    # -- packages ---------------------------------------------------------------------------------
    def _environment(self, python: Path) -> dict[str, Any]:
        path = self._folder / f"{_key(python)}.json"
        with self._lock:  # the first of many attempts runs the probe, the others read the list
            try:
                known = json.loads(path.read_bytes())
                if known.pop("format") == FORMAT:
                    return dict(known)
            except (OSError, ValueError, KeyError, AttributeError):
                pass  # not determined yet
            done = subprocess.run(
                [str(python), "-I", "-c", PROBE],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_S,
                check=False,
                cwd="/",
            )
            if done.returncode:
                raise ValueError(done.stderr.decode(errors="replace").strip()[-200:])
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            self._keep(path, found)
            return found

    def _keep(self, path: Path, found: Mapping[str, Any]) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(path, json.dumps({"format": FORMAT, **found}))
        except OSError as error:
            log.info("a list of packages is not cached: %s", error)

    # -- GPUs -------------------------------------------------------------------------------------
    def _all_gpus(self) -> tuple[list[dict[str, Any]], str]:
        with self._lock:
            now_s = time.monotonic()
            if self._gpus is None or now_s - self._gpus[0] > GPU_AGAIN_S:
                gpus, reason = read_gpus()
                self._gpus = (now_s, gpus, reason)
            return self._gpus[1], self._gpus[2]


def _key(python: Path) -> str:
    """Return a key that changes whenever an interpreter gains or loses packages."""
    hashed = hashlib.sha256(str(python).encode(errors="surrogateescape"))
    roots = [python.parent.parent]
    settings = roots[0] / "pyvenv.cfg"
    try:
        text = settings.read_text(errors="replace")
        roots += [Path(line.partition("=")[2].strip()).parent for line in text.splitlines()
                  if line.startswith("home")]  # fmt: skip
    except OSError:
        roots.append(Path(os.path.realpath(python)).parent.parent)
    for root in roots:
        for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages"):
            for folder in sorted(root.glob(pattern)):
                hashed.update(f"{folder}\0{folder.stat().st_mtime_ns}".encode(errors="replace"))
    return hashed.hexdigest()[:32]


@lru_cache
def _machine() -> dict[str, Any]:
    """Return name, kernel, CPU and memory of this machine."""
    return {
        "machine": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _first(r"(?m)^(?:model name|Hardware)\s*:\s*(.+)$", "/proc/cpuinfo")
        or platform.processor()
        or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": int(_first(r"(?m)^MemTotal:\s*(\d+) kB", "/proc/meminfo") or 0) * 1024,
    }


def _first(pattern: str, path: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return ""
    return found[1].strip() if found else ""


def read_gpus() -> tuple[list[dict[str, Any]], str]:
    """Return the machine's NVIDIA GPUs with driver and CUDA version, or why they are unknown."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "GPUs are unknown: this node has no nvidia-smi"
    import xml.etree.ElementTree as ElementTree  # for nodes with GPUs only

    try:
        done = subprocess.run(
            [program, "-q", "-x"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GPU_S,
            check=True,
        )
        root = ElementTree.fromstring(done.stdout)  # noqa: S314 - of the machine's own driver
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError) as error:
        return [], f"GPUs are unknown: nvidia-smi: {error}"[:300]
    driver, cuda = root.findtext("driver_version"), root.findtext("cuda_version")
    return [
        {
            "index": number,
            "uuid": gpu.findtext("uuid"),
            "name": gpu.findtext("product_name"),
            "memory": gpu.findtext("fb_memory_usage/total"),
            "driver": driver,
            "driver_cuda": cuda,
        }
        for number, gpu in enumerate(root.findall("gpu"))
    ], ""
