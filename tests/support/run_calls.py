"""A running job on this node, and an agent that answers the calls of its script."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rayjobs.core.paths import PACKAGE
from rayjobs.injob.channel import Channel
from rayjobs.injob.run_token import TOKEN_VARIABLE
from rayjobs.jobs.states import JobState
from rayjobs.node.run_calls import token_of
from rayjobs.node.run_server import serving
from rayjobs.protocol.attempts import AttemptOnNode
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.submit.submitting import Checked, pack_source
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.contract.store_contract import bring

S = JobState


@dataclass
class Scene:
    """A job that runs, with its folder on this node, and an agent that answers its script."""

    opened: OpenWorkspace
    job: str
    attempt: int
    root: Path
    on: AttemptOnNode
    channels: list[Channel] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAYJOBS_RUN_ID": self.job,
            "RAYJOBS_ATTEMPT": str(self.attempt),
            "RAYJOBS_ATTEMPT_DIR": str(self.root),
            "RAYJOBS_METRICS_DIR": str(self.root / "metrics"),
            "RAYJOBS_OUTPUTS": str(self.root / "work" / "outputs"),
            "RAYJOBS_EXPERIMENT": "mnist",
            "RAYJOBS_WORKSPACE_NAME": self.opened.name,
            TOKEN_VARIABLE: token_of(self.root),
        }

    def channel(self, patience_s: float = 5.0, token: str | None = None) -> Channel:
        made = Channel(
            str(self.root),
            self.job,
            self.attempt,
            token_of(self.root) if token is None else token,
            patience_s,
        )
        self.channels.append(made)
        return made

    def script(self, text: str, *, bare: bool = False) -> str:
        """Run a script as a rank does; with `bare`, only the standard library can be imported."""
        command = [sys.executable, *(["-S", "-E"] if bare else []), "-c"]
        head = f"import sys; sys.path.append({str(self.root / 'injob')!r})\n"
        done = subprocess.run(
            [*command, head + textwrap.dedent(text)],
            env={**os.environ, **self.environment},
            cwd=self.root / "work",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Agent:
    """Serves an attempt's script on its own event loop, until it is stopped."""

    def __init__(self, on: AttemptOnNode, opened: OpenWorkspace) -> None:
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Event
        self._thread = threading.Thread(target=self._run, args=(on, opened))
        self._thread.start()
        assert self._ready.wait(60)

    def _run(self, on: AttemptOnNode, opened: OpenWorkspace) -> None:
        async def main() -> None:
            self._end = asyncio.Event()
            async with serving(on, lambda: opened):
                self._ready.set()
                await self._end.wait()

        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(main())
        self._loop.close()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(60)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print('train')\n")
    opened = open_workspace(tmp_path / "w")
    spec = JobSpec(script="train.py", name="train", tags={"team": "blue"})
    packed = pack_source(opened, Checked(spec, source, (), ()))
    assert packed is not None
    new = NewJob(spec=spec, experiment="mnist", snapshot=packed.digest, user="ada")
    job, _ = opened.store.submit(new)
    attempt = bring(opened.store, job, S.RUNNING)
    root = tmp_path / ("a-long-name-of-a-folder-" * 5) / "a1"  # longer than a socket's path may be
    (root / "metrics").mkdir(parents=True)
    (root / "work").mkdir()
    (root / "injob").mkdir()
    (root / "injob" / "rayjobs").symlink_to(PACKAGE)
    on = AttemptOnNode(
        workspace=str(opened.path),
        target="local",
        job=job.id,
        attempt=attempt,
        node=0,
        marker="m",
        root=str(root),
        socket="",
    )
    made = Scene(opened, job.id, attempt, root, on)
    yield made
    for channel in made.channels:
        channel.close()
    opened.close()


@pytest.fixture
def serve(scene: Scene) -> Iterator[Callable[[], Agent]]:
    token_of(scene.root)
    agents: list[Agent] = []

    def start() -> Agent:
        agents.append(Agent(scene.on, scene.opened))
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop()


@pytest.fixture
def agent(serve: Callable[[], Agent]) -> Agent:
    return serve()
