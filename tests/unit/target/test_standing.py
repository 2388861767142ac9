"""An agent takes over the niceness and OOM score of its raylet, in every thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Any user may lower a priority, so this needs no rights: the raylet has the lower one.
RAYLET = """
import os, sys
os.nice(7)
open("/proc/self/oom_score_adj", "w").write("900")
print("up", flush=True)
sys.stdin.read()
"""
WORKER = """
import os, sys, threading
from rayjobs.target.standing import take_over
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
take_over(int(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, thread.native_id), os.nice(0), flush=True)
print(open("/proc/self/oom_score_adj").read().strip(), flush=True)
os.system("nice")
over.set()
"""


@pytest.mark.long
def test_threads_and_children_have_the_priority_of_the_raylet() -> None:
    raylet = subprocess.Popen(
        [sys.executable, "-c", RAYLET], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with raylet:
        assert raylet.stdout is not None and raylet.stdout.readline() == b"up\n"
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(raylet.pid)], stdout=subprocess.PIPE, check=True
        )
        raylet.communicate(b"")
    inside, adjustment, child = done.stdout.decode().splitlines()
    thread, main = inside.split()
    assert int(thread) == int(main) == int(child) >= 7
    assert adjustment == "900"
