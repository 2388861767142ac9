"""A script inherits the same niceness, umask and files on a real target as from a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rayjobs.jobs.states import JobState
from tests.support.jobs import Jobs

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

FACTS = """
import json, os
facts = {
    "nice": os.nice(0),
    "umask": oct(os.umask(0)),
    "oom_score_adj": int(open("/proc/self/oom_score_adj").read()),
    "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
    "command": open("/proc/self/cmdline").read().split("\\0")[1:],
}
print("FACTS", json.dumps(facts))
"""


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of this process for one test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def of_python(jobs: Jobs) -> dict[str, object]:
    """Return the facts of a script that a shell starts."""
    (jobs.folder / "train.py").write_text(FACTS)
    done = subprocess.run(
        [sys.executable, "train.py", "--x", "a b"],
        cwd=jobs.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout.decode().partition("FACTS ")[2])
    return found


@pytest.mark.parametrize("umask", [0o022, 0o027], ids=oct, indirect=True)
def test_script_inherits_the_same_as_from_a_shell(jobs: Jobs, umask: int) -> None:
    """Off switch: start the head without `HEAD_ENVIRONMENT`, and agents without `take_over`."""
    expected = of_python(jobs)
    assert expected["umask"] == oct(umask)
    ways = {cold: jobs.submit(FACTS, arguments=("--x", "a b"), cold=cold) for cold in (False, True)}
    for cold, job in ways.items():
        jobs.wait(job, JobState.COMPLETED)
        assert (jobs.attempt(job).cold_reason is not None) == cold
        lines = [line for line in jobs.log(job).decode().splitlines() if line.startswith("FACTS ")]
        assert json.loads(lines[0].partition(" ")[2]) == expected, f"cold={cold}"
