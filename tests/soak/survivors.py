"""``python -m tests.soak.survivors``: which processes survive which death, on its own target.

A job's script starts a child, a process in its own session that ignores SIGTERM, and a daemon with
a wiped environment. Then one process is killed, and all others are watched.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from rayjobs.injob.identity import Identity, identity_of, is_alive, send_signal
from rayjobs.jobs.records import Job
from rayjobs.jobs.states import JobState
from tests.support.jobs import Jobs, until
from tests.support.local_target import LocalTarget

WATCHED_S = 25.0
LOOK_S = 0.02
CHILD, SESSION, DAEMON = "its child", "in a session of its own", "daemon"
# The seconds that each of them sleeps identify it; the job adds its own fraction.
SLEEPS = {CHILD: 100_001, SESSION: 100_002, DAEMON: 100_003}
RANK, HOST, WARM, AGENT, ACTOR = (
    "rank",
    "attempt host",
    "warm interpreter",
    "node agent",
    "target actor",
)
RAYLET, HEAD = "raylet", "whole Ray head"
ROLES = (ACTOR, AGENT, WARM, HOST, RANK, CHILD, SESSION, DAEMON)
# The processes of a job: they end with its host and rank, and survive any other death.
OF_THE_JOB = (HOST, RANK, CHILD, SESSION, DAEMON)

SCRIPT = """
import os, subprocess, sys, time

if os.environ["RAYJOBS_ATTEMPT"] == "1":
    child, session, daemon = sys.argv[1:]
    subprocess.Popen(["sleep", child])
    subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep " + session], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/usr/bin/env", ["env", "-i", "sleep", daemon], {})
        os._exit(0)
    os.wait()
print("up", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Outcome:
    """Which processes died after one death.

    Attributes:
        dead_s: Role → seconds until the process was dead; None if it survived.
        end: The job's final state, and its number of attempts.
    """

    killed: str
    dead_s: Mapping[str, float | None]
    end: str

    @property
    def living(self) -> set[str]:
        """The roles of the processes that survived."""
        return {role for role, seconds in self.dead_s.items() if seconds is None}

    @property
    def row(self) -> str:
        """The row of the table."""
        cells = ["lives" if (at := self.dead_s[role]) is None else f"{at:.1f}" for role in ROLES]
        return f"| {self.killed} | {' | '.join(cells)} | {self.end} |"


class Scene:
    """A running job, and the processes that serve it."""

    def __init__(self, jobs: Jobs, target: LocalTarget) -> None:
        from tests.faults.test_processes_killed import (
            actor_pid,
            only_agent,
            rank_pid,
            warm_interpreters,
        )

        self._jobs = jobs
        self._target = target
        part = secrets.randbelow(10**6)
        sleeps = {role: f"{seconds}.{part:06}" for role, seconds in SLEEPS.items()}
        self.go = jobs.folder / f"go{part}"
        self.job: Job = jobs.submit(
            SCRIPT, arguments=tuple(sleeps.values()), environment_variables={"GO": str(self.go)}
        )
        jobs.wait_for_output(self.job, b"up")
        jobs.wait(self.job, JobState.RUNNING)
        self.processes: dict[str, Identity] = {
            ACTOR: _known(actor_pid(target)),
            AGENT: _known(until(lambda: only_agent(target), "the agent is found")[0]),
            WARM: until(lambda: warm_interpreters(target), "the warm interpreter answers")[0],
            HOST: jobs.host_process(self.job),
            RANK: _known(rank_pid(jobs.root(self.job))),
            **{
                role: until(lambda text=text: _sleeping(text), f"{role} runs")  # type: ignore[misc]
                for role, text in sleeps.items()
            },
        }

    def killed(self, what: str, watched_s: float, enough: Callable[[set[str]], bool]) -> Outcome:
        """Kill one process; watch the others until the time is over, or `enough` of them died."""
        from rayjobs.target import local_head

        head = self._target.head
        raylet = head.identity("raylet")
        assert raylet is not None
        victims = {
            RAYLET: [raylet],
            HEAD: list(local_head.processes_of(Path(head.temp_dir))),
        }.get(what) or [self.processes[what]]
        for victim in victims:
            send_signal(victim, signal.SIGKILL)
        began_s = time.monotonic()
        dead: dict[str, float | None] = dict.fromkeys(ROLES)
        while (passed_s := time.monotonic() - began_s) < watched_s:
            for role, identity in self.processes.items():
                if dead[role] is None and not is_alive(identity):
                    dead[role] = passed_s
            if enough({role for role, at in dead.items() if at is None}):
                break
            time.sleep(LOOK_S)
        self.go.write_text("")
        done = self._jobs.wait(self.job)
        self._jobs.nothing_left(self.job)
        for role in OF_THE_JOB:
            until(lambda one=role: not is_alive(self.processes[one]), f"{role} is gone")  # type: ignore[misc]
        attempts = f"{done.attempt} attempt{'' if done.attempt == 1 else 's'}"
        return Outcome(what, dead, f"{done.state}, {attempts}")


def _known(pid: int) -> Identity:
    found = identity_of(pid)
    assert found is not None, f"process {pid} has just ended"
    return found


def _sleeping(seconds: str) -> Identity | None:
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", seconds]:
            return identity_of(process.pid)
    return None


def never(_living: set[str]) -> bool:
    """Watch to the end."""
    return False


INTRODUCTION = f"""\
# Which process survives which

This page is written by `python -m tests.soak.survivors`, on a `local` target with real processes.
The script of a job has started a child, a process in its own session that ignores SIGTERM, and a
daemon whose environment is wiped. Then one process is killed (SIGKILL), and all processes are
watched for {WATCHED_S:g} seconds. A cell says after how many seconds the process was dead; the last
column says how the job ended once its script was allowed to end. A process of the job that is
still alive after that time is dead by the end of the job. After the death of a raylet or a head,
the keeper starts another head, whose agent ends the surviving processes. On a cluster the attempt
hosts notice the death of their raylet and end on their own.
"""


def table(outcomes: list[Outcome], held_by: str) -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            INTRODUCTION,
            f"Held by `{held_by}` ([levels](architecture.md#containment)); "
            f"{os.cpu_count()} cores at a load of {os.getloadavg()[1]:.0f}, Linux "
            f"{platform.release().split('-')[0]}, Python {platform.python_version()}.",
            "",
            f"| killed | {' | '.join(ROLES)} | the job |",
            f"|---|{'---|' * (len(ROLES) + 1)}",
            *[one.row for one in outcomes],
            "",
        ]
    )


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.survivors", description=__doc__)
    parser.add_argument("--report", type=Path, default=Path("docs/who-survives.md"))
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rjw-", dir="/tmp"))
    os.environ |= {
        "RAYJOBS_HOME": str(root / "h"),
        "RAYJOBS_WORKSPACE": str(root / "w"),
        "RAYJOBS_LOCAL_DASHBOARD": "0",
    }
    from rayjobs.target import starting, targets
    from rayjobs.workspace.folder import locate, open_workspace

    outcomes: list[Outcome] = []
    held_by = ""
    try:
        starting.ensure_target("local", home=root / "h")
        (root / "s").mkdir()
        with open_workspace(locate()) as workspace:
            jobs = Jobs(workspace, root / "s")
            for what in (*ROLES, RAYLET, HEAD):
                scene = Scene(jobs, LocalTarget(root / "h", ()))
                outcomes.append(scene.killed(what, WATCHED_S, never))
                held_by = str(jobs.attempt(scene.job).exits[0].tree)
                print(outcomes[-1].row, flush=True)
        options.report.write_text(table(outcomes, held_by))
        print(f"wrote {options.report}")
    finally:
        targets.stop_target(force=True, home=root / "h")
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
