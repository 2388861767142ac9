"""Tests what this machine allows: containment, memory limits, mounts, builds and containers."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayjobs.housekeeping.doctor.findings import DoctorContext, Finding, Level
from rayjobs.injob import cgroups
from rayjobs.injob.memory import MemoryLimit, remove_cgroups_of
from rayjobs.injob.tree import CGROUP, NAMESPACE, Tree, find_cgroup, make_cgroup
from rayjobs.node import containment, probe
from rayjobs.node.input_views import InputViews
from rayjobs.target.local_head import LOCAL
from rayjobs.target.node_settings import SCRATCH, NodeSettings, node_root

ANSWER_S = 60.0
ENGINES = ("skopeo", "podman", "docker", "buildah")
_DELEGATE = (
    "A writable cgroup v2 works better: run in a service or scope with Delegate=yes, or give the "
    "container its own (docker run --cgroupns=private, with /sys/fs/cgroup writable)."
)
_MEMORY_KINDS = {
    "cgroup2": "enforced by the kernel (cgroup v2, memory.max)",
    "cgroup1": "enforced by the kernel (cgroup v1)",
    "watch": "enforced by ending the largest process: a sudden burst may exceed them",
}


@contextmanager
def _tried() -> Iterator[tuple[Tree, MemoryLimit, subprocess.Popen[bytes]]]:
    """Yield the tree of a sleeping process, its memory limit and the process, as in an attempt."""
    marker = f"doctor-{secrets.token_hex(6)}"
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        # Without a holder: the other children of this process are not ours.
        tree = Tree(marker, make_cgroup(marker), holder=None)
        limit = MemoryLimit(2**30, tree)
        tree.add(child.pid)
        limit.add(child.pid)
        yield tree, limit, child
    finally:
        child.kill()
        child.wait()
        remove_cgroups_of(marker)


def ending(_context: DoctorContext) -> Iterator[Finding]:
    """Which containment the processes of an attempt get, and why not a better one."""
    why = ""
    with _tried() as (tree, _limit, child):
        killed = tree.cgroup is not None and cgroups.write(tree.cgroup, "cgroup.kill", "1")
        if killed:
            try:
                child.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                killed, why = False, "cgroup.kill ended nothing"
        elif tree.cgroup is None:
            why = find_cgroup(tree.marker)[1]
        else:
            why = "cgroup.kill cannot be written"
    topic = "ending jobs"
    if killed:
        text = "the kernel ends all processes of an attempt (cgroup v2, cgroup.kill)"
        yield Finding(topic, Level.OK, text, "", {"kind": "cgroup2", "refused": {}})
        return
    refused = {CGROUP: why}
    why = _why_no_namespace()
    if not why:
        text = (
            f"each attempt has a PID namespace, which ends with its host; there is no usable "
            f"cgroup: {refused[CGROUP]}"
        )
        yield Finding(topic, Level.OK, text, "", {"kind": "namespace", "refused": refused})
        return
    refused[NAMESPACE] = why
    text = (
        f"the processes of an attempt are found by their marker: this is slower, and a process "
        f"that wipes its environment can outlive a host that is killed. There is no usable cgroup: "
        f"{refused[CGROUP]}. There is no PID namespace: {refused[NAMESPACE]}"
    )
    yield Finding(topic, Level.WARN, text, _DELEGATE, {"kind": "subreaper", "refused": refused})


def memory(_context: DoctorContext) -> Iterator[Finding]:
    """How a job's memory limit is enforced."""
    with _tried() as (_tree, limit, _child):
        how = limit.how
    level = Level.WARN if how == "watch" else Level.OK
    remedy = _DELEGATE if how == "watch" else ""
    text = f"limits are {_MEMORY_KINDS[how]}"
    yield Finding("memory limits", level, text, remedy, {"kind": how})


def namespaces(_context: DoctorContext) -> Iterator[Finding]:
    """Whether an attempt can have a PID namespace with a /proc of its own."""
    why = _why_no_namespace()
    if why:
        text = f"PID and mount namespaces cannot be used, so jobs run without them: {why}"
    else:
        text = "PID and mount namespaces can be created"
    yield Finding("namespaces", Level.OK, text, "", {"works": not why, "why": why})


def inputs(context: DoctorContext) -> Iterator[Finding]:
    """How this machine prevents jobs from changing the data behind their inputs."""
    settings = NodeSettings.read(LOCAL)
    folder = _writable_folder(context)
    if folder is None:
        yield _no_folder("inputs", context)
        return
    found = InputViews(folder, is_on=settings.input_views).protection()
    data = {"read_only": found.read_only, "overlay": found.overlay}
    if found.why:
        text = f"inputs from local folders are mounted by FUSE, or copied: {found.why}"
    elif found.why_no_overlay:
        text = (
            f"inputs are read-only in place; downloads from S3 are copied: {found.why_no_overlay}"
        )
    else:
        text = "inputs are read-only in place; downloads from S3 share the node's cached files"
    level = Level.WARN if found.why else Level.OK
    remedy = (
        "Stored data is safe either way; read-only inputs in place need no copies. They need mount "
        "namespaces: CAP_SYS_ADMIN in a container, or user namespaces for ordinary users."
    )
    yield Finding("inputs", level, text, remedy if found.why else "", data)


def fuse(_context: DoctorContext) -> Iterator[Finding]:
    """Whether inputs can be mounted."""
    from rayjobs.datastore.mounts import fuse_missing

    missing = fuse_missing()
    if not missing:
        yield Finding("mounts", Level.OK, "inputs can be mounted (FUSE)", "", {"works": True})
        return
    yield Finding(
        "mounts",
        Level.WARN,
        f"inputs cannot be mounted: {missing}",
        "Install fuse3 and give the machine or container /dev/fuse; download mode needs neither.",
        {"works": False, "missing": missing},
    )


def packages(_context: DoctorContext) -> Iterator[Finding]:
    """Which kinds of environments this machine can build."""
    from rayjobs.core.errors import PrepareError
    from rayjobs.environments import condas, settings

    try:
        uv, why_no_pip = settings.find_uv(), ""
    except PrepareError as error:
        uv, why_no_pip = "", error.message
    has_library = importlib.util.find_spec("rattler") is not None
    commands = [one for one in condas.COMMANDS if shutil.which(one)]
    able = [*([] if why_no_pip else [f"pip by uv ({uv})"]), *(["conda"] if has_library else [])]
    able += [f"conda by {one} (`conda_command`)" for one in commands]
    data = {"pip": not why_no_pip, "conda": has_library, "conda_commands": commands}
    text = f"environments that can be built here: {', '.join(able) or 'none'}"
    if why_no_pip:
        yield Finding("environments", Level.WARN, text, f"{why_no_pip}.", data)
    else:
        remedy = "" if has_library or commands else "For conda packages, install rayjobs[conda]."
        yield Finding("environments", Level.OK, text, remedy, data)


def containers(context: DoctorContext) -> Iterator[Finding]:
    """Whether jobs can run in images here, and which programs fetch and build them."""
    from rayjobs.containers import container_tools
    from rayjobs.node.containers import INSTEAD, Capability, capability_of

    folder = _writable_folder(context)
    if folder is None:
        yield _no_folder("containers", context)
        return
    found = container_tools.available(ENGINES)
    inside = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    try:
        able = capability_of(folder)
    except probe.ProbeError as error:
        able = Capability(str(error), is_certain=False)
    fetching = f"fetched by {', '.join(found)}" if found else "no program here fetches them"
    data = {
        "works": not able.why,
        "why": able.why,
        "overlay": not able.why_no_overlay,
        "engines": found,
        "inside": inside,
    }
    here = "; this is itself a container" if inside else ""
    if able.why:
        text = f"jobs cannot run in container images: {able.why}{here}"
        yield Finding("containers", Level.WARN, text, f"{INSTEAD}.", data)
    elif able.why_no_overlay:
        text = f"each attempt copies its image: {able.why_no_overlay}; {fetching}{here}"
        yield Finding("containers", Level.WARN, text, "Overlay mounts make a start faster.", data)
    else:
        text = f"jobs can run in container images; {fetching}{here}"
        yield Finding("containers", Level.OK, text, "", data)


def _why_no_namespace() -> str:
    try:
        return containment.why_no_namespace()
    except probe.ProbeError as error:
        return str(error)


def _writable_folder(context: DoctorContext) -> Path | None:
    """Return the node's scratch folder, or the one in which it would be made, if any."""
    node = node_root(context.home)
    folder = next(one for one in (node, *node.parents) if one.exists())
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None


def _no_folder(topic: str, context: DoctorContext) -> Finding:
    return Finding(
        topic,
        Level.FAIL,
        f"jobs cannot run here: this user cannot write to {node_root(context.home)}",
        f"Set RAYJOBS_HOME or {SCRATCH} to a folder that you can write to.",
    )
