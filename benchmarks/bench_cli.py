"""`rayjobs submit -d` as a command, compared with `ray job submit`, and the time that git adds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure, median
from benchmarks.head import TRIVIAL, Head


def measure(head: Head, *, rounds: int) -> list[Figure]:
    """Run both commands in turn."""
    source = head.source(TRIVIAL)
    url = head.peer()._address
    ours, peers = [], []
    for _ in range(rounds):
        ours.append(_run([sys.executable, "-m", "rayjobs", "submit", "-d", "train.py"], source))
        program = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
        entry = [sys.executable, str(source / "train.py")]
        peers.append(_run([*program, "--address", url, "--no-wait", "--", *entry], source))
    unchanged, changed = _git_adds(head, rounds=rounds, files=100 if rounds == 1 else 10_000)
    head.wait(list(head.workspace.store.jobs()))
    return [
        Figure(
            "submit -d as a command",
            "s",
            median(ours),
            median(peers),
            "ray job submit --no-wait",
            most=0.5,
        ),
        Figure("git adds to submit -d, 10,000 files, tree unchanged", "s", unchanged, most=0.02),
        Figure("git adds to submit -d, 10,000 files, one file changed", "s", changed),
    ]


def _git_adds(head: Head, *, rounds: int, files: int) -> tuple[float, float]:
    """Return the seconds that a repository adds to a submit of its tree: unchanged, and changed.

    The same tree is submitted with its `.git` and without it, in turn; medians are compared.
    """
    source = head.source(TRIVIAL)
    for number in range(files):
        path = source / f"part{number // 500}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"VALUE = {number}\n")
    hidden = source.parent / f"{source.name}.git"
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=source, check=True)
    submit = [sys.executable, "-m", "rayjobs", "submit", "-d", "train.py"]
    times: dict[tuple[bool, bool], list[float]] = {}
    for turn in range(-1, 2 * rounds):
        is_changed = turn >= rounds  # first all rounds without a change, then those with one
        for has_git in (True, False):
            if not has_git:
                (source / ".git").rename(hidden)
            if is_changed:
                (source / "train.py").write_text(f"{TRIVIAL}# {turn}{has_git}\n")
            seconds = _run(submit, source)
            if not has_git:
                hidden.rename(source / ".git")
            if turn >= 0:  # the first turn fills caches
                times.setdefault((is_changed, has_git), []).append(seconds)
    return (
        median(times[False, True]) - median(times[False, False]),
        median(times[True, True]) - median(times[True, False]),
    )


def _run(command: list[str], folder: Path) -> float:
    environment = {**os.environ}
    # Let Python store compiled modules, as it does by default.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return seconds
