"""A job that runs as root tries to unmount its inputs: the data that it reads stays unchanged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conformance.hosts import Attempt, namespaces_work, warm
from tests.conformance.test_views import Inputs

__all__ = ["warm"]

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not namespaces_work(), reason="needs root and PID namespaces"
    ),
]

# Every way in which root could bypass the read-only mount: itself, and by programs it starts.
ATTACKS = """
import ctypes, glob, os, subprocess, sys
stored, folder = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)

def tried(name):
    try:
        open(stored, "r+").write("CHANGED")
        print(name, "written", flush=True)
    except OSError as error:
        print(name, error.errno, flush=True)

def is_of_another_job(root):
    # Without a PID namespace, concurrent jobs of other tests are visible. They see the inputs of
    # this job unprotected.
    try:
        block = open(os.path.dirname(root) + "/environ").read()
    except OSError:
        return False
    return "RAYJOBS_MARKER=" in block and os.environ["RAYJOBS_MARKER"] not in block

def shell(name, text):
    subprocess.run(["sh", "-c", text], stderr=subprocess.DEVNULL)
    tried(name)

print("umount2", libc.umount2(folder.encode(), 2))
tried("umount2")
libc.mount(None, folder.encode(), None, ctypes.c_ulong(4096 | 32), None)
tried("remount")
shell("umount", f"umount -l {folder}; umount {folder}")
shell("mount", f"mount -o remount,bind,rw {folder}")
shell("nsenter", f"nsenter -t 1 -m sh -c 'echo CHANGED > {stored}'")
shell("unshare", f"unshare -rm sh -c 'umount -l {folder}; mount -o remount,bind,rw {folder}; "
      f"echo CHANGED > {stored}'")
for root in glob.glob("/proc/[0-9]*/root"):
    if is_of_another_job(root):
        continue
    try:
        with open(root + stored, "r+") as file:
            file.write("CHANGED")
        print("written by", root, flush=True)
    except OSError:
        pass
tried("proc")
bound = [line.split()[1] for line in open("/proc/self/status") if line[:6] == "CapBnd"]
print("bounding set", int(bound[0], 16) >> 21 & 1)
"""


@pytest.mark.parametrize("containment", [["scan"], ["namespace"]], ids=["scan", "namespace"])
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_root_cannot_unmount_its_inputs(
    short_path: Path, warm: str, way: str, containment: list[str]
) -> None:
    inputs = Inputs(short_path / "data")
    arguments = [str(inputs.stored), str(inputs.stored.parent)]
    attempt = Attempt.make(
        short_path, ATTACKS, *arguments, containment=containment, views=inputs.views
    )
    started = attempt.start(warm) if way == "warm" else attempt.start_cold()
    assert started.wait()["outcome"] == "completed", attempt.log()
    log = attempt.log().decode()
    assert "written" not in log
    assert log.count("\n") == 9, log
    assert "bounding set 0" in log
    assert inputs.are_as_before()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
def test_a_job_without_inputs_keeps_the_rights_of_root(short_path: Path, warm: str) -> None:
    source = "print([line for line in open('/proc/self/status') if line[:6] == 'CapBnd'][0])"
    attempt = Attempt.make(short_path, source)
    assert attempt.start(warm).wait()["outcome"] == "completed", attempt.log()
    own = [line for line in Path("/proc/self/status").read_text().splitlines() if "CapBnd" in line]
    assert attempt.log().decode().strip() == own[0]
