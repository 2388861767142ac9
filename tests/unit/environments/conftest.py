"""A node's environments without Ray: attempts that request packages, and their messages."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.paths import AttemptPaths, NodePaths
from rayjobs.environments.building import Control
from rayjobs.environments.realise import Environments
from rayjobs.environments.work import Realised, Work


@dataclass
class Wish:
    """One attempt that requests packages."""

    work: Work
    messages: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        """The steps that were reported, by kind."""
        return [str(data["step"]) for _text, data in self.messages]

    @property
    def log(self) -> str:
        """The build's log."""
        path = self.work.paths.build_log
        return path.read_text() if path.exists() else ""


class Builder:
    """The environments of one node below a folder."""

    def __init__(self, root: Path) -> None:
        self.node = NodePaths(root)
        self.is_open = False  # True: jobs can write to their environments
        self._numbers = itertools.count(1)

    def environments(self) -> Environments:
        """Return the environments object of a new agent of the node."""
        return Environments(self.node.environments, sys.executable, lambda: self.is_open)

    def wish(self, *, known_lock: str | None = None) -> Wish:
        """Return a new attempt."""
        job = f"job{next(self._numbers)}"
        paths: AttemptPaths = self.node.attempt(job, 1)
        paths.tmp.mkdir(parents=True)
        messages: list[tuple[str, Mapping[str, Any]]] = []
        control = Control(marker=f"rj-{self.node.root.parent.name}-{job}")
        work = Work(paths, control, lambda text, data: messages.append((text, data)), known_lock)
        return Wish(work, messages)

    def build(
        self, *lines: str, python: str | None = None, wish: Wish | None = None, **more: Any
    ) -> tuple[Realised, Wish]:
        """Return the environment with these packages, and its messages."""
        attempt = wish or self.wish()
        wanted = {"pip": lines, "python": python, **more}
        return asyncio.run(self.environments().realise(wanted, attempt.work)), attempt


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """An empty node."""
    return Builder(tmp_path / "node")
