"""From an attempt host's start to the first line of Python in an image, against `podman run`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure, median
from tests.conformance.hosts import Attempt
from tests.support.containers import PYTHON, in_image
from tests.support.images import DEFAULT_ENV, python_root

# The time of the first line, as the script sees it, against the same clock.
FIRST = "import time; print(time.time(), flush=True)"


def measure(*, rounds: int) -> list[Figure]:
    """Measure both; rounds alternate. Without podman there is no peer."""
    with tempfile.TemporaryDirectory(prefix="rj-", dir="/tmp") as name:
        folder = Path(name)
        image = python_root(folder / "image")
        podman = _Podman(folder, image) if shutil.which("podman") else None
        ours, peers = [], []
        try:
            for number in range(rounds):
                ours += [_first_line(folder, image, f"{number}-{again}") for again in range(3)]
                if podman is not None:
                    peers.append(podman.first_line())
        finally:
            if podman is not None:
                podman.remove()
    if podman is None:
        print("podman is not installed: measuring without a peer", file=sys.stderr)
    return [
        Figure(
            "container: host's start → first line of Python",
            "s",
            median(ours),
            median(peers) if peers else None,
            "podman run",
            most=0.1,
            faster=3 if peers else None,
        )
    ]


def _first_line(folder: Path, image: Path, name: str) -> float:
    """Return the seconds from the host's start, which it records, to the rank's first line.

    In between, the host makes the namespaces and mounts and forks the rank, which executes Python.
    """
    home = folder / name
    home.mkdir()
    attempt = in_image(Attempt.make(home, FIRST), image)
    record = attempt.start_cold().wait()
    return float(attempt.log()) - float(record["started_at"])


class _Podman:
    """A podman image with the same files."""

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        settings = folder / "containers.conf"
        # Podman's defaults request more open files than an ordinary machine allows.
        settings.write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        self._env = {**os.environ, "CONTAINERS_CONF": str(settings)}
        self._words = [
            "podman", "--root", str(folder / "podman"), "--runroot", str(folder / "podman-run"),
        ]  # fmt: skip
        tar = folder / "image.tar"
        subprocess.run(["tar", "-C", str(image), "-cf", str(tar), "."], check=True)
        changes = [word for one in DEFAULT_ENV for word in ("-c", f"ENV {one}")]
        self._run(["import", "--quiet", *changes, str(tar), "localhost/bench:1"])
        tar.unlink()

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            [*self._words, *words], env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"podman {' '.join(words)}: {done.stderr}")
        return done.stdout

    def first_line(self) -> float:
        """Return the seconds from the call of `podman run` to the first line."""
        began = time.time()
        said = self._run(
            ["run", "--rm", "--network", "host", "--log-driver", "none", "localhost/bench:1",
             PYTHON, "-c", FIRST]
        )  # fmt: skip
        return float(said) - began

    def remove(self) -> None:
        """Remove all of its files, and its mounts."""
        self._run(["system", "reset", "--force"])


if __name__ == "__main__":
    print(json.dumps([one.ours for one in measure(rounds=3)]))
