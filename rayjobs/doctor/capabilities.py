"""What this machine allows with processes, memory, mounts and containers; tried, not guessed."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayjobs.doctor.findings import Finding, Level, Place
from rayjobs.injob import cgroups
from rayjobs.injob.memory import MemoryLimit, remove_cgroups_of
from rayjobs.injob.tree import Tree, make_cgroup

ANSWER_S = 60.0
ENGINES = ("docker", "podman", "apptainer")
_DELEGATE = (
    "A writable cgroup v2 does better: run in a service or scope with Delegate=yes, or give the "
    "container its own (docker run --cgroupns=private, with /sys/fs/cgroup writable)."
)
_MEMORY_KINDS = {
    "cgroup2": "kept by the kernel (cgroup v2, memory.max)",
    "cgroup1": "kept by the kernel (cgroup v1)",
    "watch": "kept by watching and ending the largest process: a sudden burst may pass it",
}


@contextmanager
def _tried() -> Iterator[tuple[Tree, MemoryLimit, subprocess.Popen[bytes]]]:
    """A tree of one sleeping process with a memory limit, as an attempt would get it."""
    marker = f"doctor-{secrets.token_hex(6)}"
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        # Without a holder: the other children of this process are none of ours.
        tree = Tree(marker, make_cgroup(marker), holder=None)
        limit = MemoryLimit(2**30, tree)
        tree.add(child.pid)
        limit.add(child.pid)
        yield tree, limit, child
    finally:
        child.kill()
        child.wait()
        remove_cgroups_of(marker)


def ending(_place: Place) -> Iterator[Finding]:
    """How the processes of an attempt are ended."""
    with _tried() as (tree, _limit, child):
        killed = tree.cgroup is not None and cgroups.write(tree.cgroup, "cgroup.kill", "1")
        if killed:
            try:
                child.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                killed = False
    data = {"kind": "cgroup2" if killed else "subreaper"}
    if killed:
        text = "attempts are ended as a whole by the kernel (cgroup v2, cgroup.kill)"
        yield Finding("ending jobs", Level.OK, text, "", data)
    else:
        text = "attempts are held by their host and found by their marker: safe, and slower"
        yield Finding("ending jobs", Level.WARN, text, _DELEGATE, data)


def memory(_place: Place) -> Iterator[Finding]:
    """How a job's memory limit is kept."""
    with _tried() as (_tree, limit, _child):
        how = limit.how
    level = Level.WARN if how == "watch" else Level.OK
    remedy = _DELEGATE if how == "watch" else ""
    text = f"limits are {_MEMORY_KINDS[how]}"
    yield Finding("memory limits", level, text, remedy, {"kind": how})


def namespaces(_place: Place) -> Iterator[Finding]:
    """Whether user, mount and PID namespaces can be made."""
    tool = shutil.which("unshare")
    if tool is None:
        yield Finding("namespaces", Level.OK, "not tried: the program unshare is not installed")
        return
    done = subprocess.run(
        [tool, "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=ANSWER_S,
        check=False,
    )
    works = done.returncode == 0
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    text = (
        "PID and mount namespaces can be made"
        if works
        else (
            f"PID and mount namespaces cannot be made ({said[-1] if said else 'refused'}); jobs do "
            f"without"
        )
    )
    yield Finding("namespaces", Level.OK, text, "", {"works": works})


def fuse(_place: Place) -> Iterator[Finding]:
    """Whether inputs can be mounted."""
    from datastore.mounts import fuse_missing

    missing = fuse_missing()
    if not missing:
        yield Finding("mounts", Level.OK, "inputs can be mounted (FUSE)", "", {"works": True})
        return
    yield Finding(
        "mounts",
        Level.WARN,
        f"inputs cannot be mounted: {missing}",
        "Install fuse3 and give the machine or container /dev/fuse; download mode works without.",
        {"works": False, "missing": missing},
    )


def containers(_place: Place) -> Iterator[Finding]:
    """Which container engine there is."""
    found = [name for name in ENGINES if shutil.which(name)]
    inside = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    here = "; this is itself a container" if inside else ""
    text = f"{', '.join(found)} installed" if found else "none installed; jobs do not need one"
    yield Finding("containers", Level.OK, text + here, "", {"engines": found, "inside": inside})
