"""Real attempts for tests: a folder, a plan, a host started warm or cold, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rayjobs
from rayjobs.injob import plan as plans
from rayjobs.injob.identity import Identity, ProcessStat, identity_of
from rayjobs.injob.processes import descendants
from rayjobs.launch import hostclient
from rayjobs.launch.leftovers import find_leftovers

Found = TypeVar("Found")
DEADLINE_S = 150.0
NOBODY = 65534
PACKAGE_HOME = str(Path(rayjobs.__file__).resolve().parent.parent)
_serial = itertools.count()


@functools.cache
def namespaces_work() -> bool:
    """Whether this machine allows PID namespaces, as a node agent checks it."""
    program = Path(plans.__file__).with_name("namespace.py")
    checked = subprocess.run(
        [sys.executable, "-S", "-E", str(program)], stdout=subprocess.PIPE, check=True, cwd="/"
    )
    return bool(json.loads(checked.stdout)["works"])


def base_env() -> dict[str, str]:
    """The variables that a warm interpreter and the ranks both get."""
    return hostclient.runtime_environment()


def until(look: Callable[[], Found | None], what: str, deadline_s: float = DEADLINE_S) -> Found:
    """Return the first true value of `look`; fail, naming `what`, if there is none in time."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.02)


@dataclass
class Attempt:
    """One attempt in its own folder."""

    root: Path
    plan: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict)
    identity: hostclient.Identity | None = None
    cold: str | None = None

    @staticmethod
    def make(
        folder: Path,
        script: str,
        *arguments: str,
        ranks: int = 1,
        env: Mapping[str, str] | None = None,
        name: str = "train.py",
        root: Path | None = None,
        **changes: Any,
    ) -> Attempt:
        """Prepare an attempt that runs `script`; `changes` go into its plan."""
        serial = next(_serial)
        root = root or folder / f"a{serial}"
        for part in ("work/outputs", "work/logs", "log", "metrics", "tmp", "stacks"):
            (root / part).mkdir(parents=True, exist_ok=True)
        path = root / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        plan = {
            "version": 1,
            "job": f"job-{serial}",
            "attempt": 1,
            "node": 0,
            "node_count": 1,
            "marker": f"rj-{os.getpid()}-{serial}-{time.monotonic_ns()}",
            "root": str(root),
            "socket": str(folder / f"h{serial}.sock"),
            "kind": "script",
            "argv": [name, *arguments],
            "command": None,
            "python": sys.executable,
            "cold": None,
            "env": {**base_env(), **(env or {})},
            "ranks": [
                {"rank": rank, "local_rank": rank, "env": {"RANK": str(rank)}}
                for rank in range(ranks)
            ],
            "grace_s": 10.0,
            "max_duration_s": None,
            "memory_bytes": None,
            "pids_max": None,
            "log_cap_bytes": None,
            "threads": None,
            "injob_path": PACKAGE_HOME,
            **changes,
        }
        return Attempt(root, plan)

    @property
    def marker(self) -> str:
        """The attempt's marker."""
        return str(self.plan["marker"])

    def write_plan(self) -> str:
        """Write plan.json and return its path."""
        path = self.root / "plan.json"
        path.write_text(json.dumps(self.plan))
        return str(path)

    def start_cold(self, reason: str = "requested", **env: str) -> Attempt:
        """Start a cold host; `env` is added to the host's own environment."""
        self.identity = asyncio.run(
            hostclient.start_cold(
                self.write_plan(), reason=reason, env={**base_env(), **env}, secrets=self.secrets
            )
        )
        return self

    def start(self, warm: str) -> Attempt:
        """Start as a node agent does: warm, or cold if the warm interpreter requires it."""
        answer = asyncio.run(hostclient.fork(warm, self.write_plan(), secrets=self.secrets))
        self.identity, self.cold = answer.identity, answer.cold
        return self.start_cold(answer.cold) if answer.cold is not None else self

    @property
    def host(self) -> hostclient.HostConnection:
        """A connection to the host."""
        assert self.identity is not None
        return hostclient.HostConnection(str(self.plan["socket"]), str(self.root), self.identity)

    def status(self) -> dict[str, Any]:
        """The response of the host."""
        return asyncio.run(self.host.status(timeout_s=DEADLINE_S)).to_json()

    def cancel(self, grace_s: float | None = None) -> bool:
        """Cancel the attempt."""
        return asyncio.run(self.host.cancel(grace_s=grace_s, timeout_s=DEADLINE_S))

    def wait(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Return the JSON of the exit record, once the host has also ended."""
        record = asyncio.run(self.host.wait(timeout_s=deadline_s))
        identity = self.identity
        assert identity is not None
        until(lambda: not hostclient.is_alive(identity), "the end of the host")
        return record.to_json()

    def log(self, rank: int = 0) -> bytes:
        """What a rank has printed so far."""
        path = self.root / "log" / f"driver_{rank}.log"
        return path.read_bytes() if path.exists() else b""

    def printed(self, text: str, rank: int = 0) -> None:
        """Wait until a rank has printed `text`."""
        until(
            lambda: text.encode() in self.log(rank),
            f"{text!r} in the log, which has {self.log(rank)[-500:]!r}",
        )

    def outside(self, pid: int) -> Identity | None:
        """Return the process that the attempt itself knows by `pid`, as seen from here."""
        for stat in self.members():
            status = Path(f"/proc/{stat.pid}/status")
            with contextlib.suppress(OSError):
                line = next(one for one in status.read_text().splitlines() if one[:6] == "NSpid:")
                if int(line.split()[-1]) == pid:
                    return identity_of(stat.pid)
        return None

    def members(self) -> list[ProcessStat]:
        """Return the attempt's living processes, including those with a wiped environment."""
        assert self.identity is not None
        found = {stat.pid: stat for stat in descendants(self.identity.pid)}
        found.update((stat.pid, stat) for stat in find_leftovers(self.marker))
        return list(found.values())

    def truth(self) -> tuple[int, bytes]:
        """Return the return code and the exact output of `python script.py`.

        Runs in the same folder, with the same environment, so that paths agree.
        """
        plan = plans.parse(self.plan)
        env = plan.rank_env(plan.ranks[0], self.secrets)
        output = self.root / "truth.log"
        with output.open("wb") as file:
            done = subprocess.run(
                [plan.python, plan.argv[0], *(plans.expand(a, env) for a in plan.argv[1:])],
                cwd=plan.work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=DEADLINE_S,
                check=False,
            )
        return done.returncode, output.read_bytes()


def run_as_nobody(
    attempt: Attempt, folder: Path, way: str, *, python_in_image: str | None = None
) -> dict[str, Any]:
    """Run an attempt below `folder` as a user without rights, and return its exit record.

    Args:
        way: cold or warm.
        python_in_image: The interpreter of the ranks, if it is not the host's.
    """
    python = python_of_others()
    if python is None:
        pytest.skip("no Python here is accessible to another user")
    attempt.plan["python"] = python_in_image or python
    injob = Path(plans.__file__).parent
    socket = str(folder / "w.sock")
    begin = {
        "cold": ["coldhost.py", attempt.write_plan()],
        "warm": ["warm.py", "--socket", socket, "--log", str(folder / "warm.log")],
    }[way]
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    mode = folder.parent.stat().st_mode
    folder.parent.chmod(mode | 0o011)
    try:
        started = subprocess.run(
            [
                *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
                *(python, str(injob / begin[0]), *map(str, begin[1:])),
            ],
            input=b"{}\n",
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "RAYJOBS_MARKER": "-" * 160, "LANG": "C.UTF-8"},
            cwd="/",
            timeout=DEADLINE_S,
            check=True,
        )
        if way == "cold":
            attempt.identity = Identity.from_json(json.loads(started.stdout))
        else:
            attempt.identity = asyncio.run(
                hostclient.fork(socket, str(attempt.root / "plan.json"))
            ).identity
        return attempt.wait()
    finally:
        asyncio.run(hostclient.stop_warm(socket))
        folder.parent.chmod(mode)


def python_of_others() -> str | None:
    """Return an interpreter that any user of this machine can run."""
    for path in (Path(sys.executable), Path("/usr/bin/python3")):
        if path.exists() and all(folder.stat().st_mode & 1 for folder in path.resolve().parents):
            return str(path)
    return None


class SharedWarm:
    """A warm interpreter that all tests of this process share; started at its first use."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._preload = preload
        self._socket: str | None = None

    def socket(self, folder: Path) -> str:
        """Return its socket, which is in the folder of the first caller."""
        if self._socket is None:
            home = folder / f"warm-{os.getpid()}-{len(self._preload)}"
            home.mkdir()
            self._socket = str(home / "w.sock")
        asyncio.run(
            hostclient.ensure_warm(
                self._socket,
                python=sys.executable,
                env=base_env(),
                log_file=str(Path(self._socket).with_name("warm.log")),
                preload=self._preload,
            )
        )
        return self._socket

    def stop(self) -> None:
        """End the interpreter, if it was started."""
        if self._socket is not None:
            asyncio.run(hostclient.stop_warm(self._socket))


# With torch, the end of a rank takes a second longer: tests that do not need it use `_light`.
_light = SharedWarm(())
_with_torch = SharedWarm(("torch", "torch._dynamo", "numpy"))


@pytest.fixture(scope="session")
def warm(session_root: Path) -> Iterator[str]:
    """The socket of a warm interpreter that has imported nothing heavy."""
    yield _light.socket(session_root)
    _light.stop()


@pytest.fixture(scope="session")
def torch_warm(session_root: Path) -> Iterator[str]:
    """The socket of a warm interpreter that has imported torch."""
    yield _with_torch.socket(session_root)
    _with_torch.stop()
