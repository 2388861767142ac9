"""Checks which ports are open, and whether the tokens that protect them are secret."""

from __future__ import annotations

import ipaddress
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from rayjobs.core.paths import TargetPaths, runtime_folder
from rayjobs.core.text import counted
from rayjobs.housekeeping.doctor.findings import DoctorContext, Finding, Level
from rayjobs.injob.processes import environment_of
from rayjobs.target import local_head
from rayjobs.target.record import all_targets
from rayjobs.target.secrets import TargetSecrets

_LISTENING = "0A"  # Source: include/net/tcp_states.h


def listening(pids: Iterable[int]) -> list[tuple[str, int]]:
    """Return the TCP addresses and ports on which these processes listen."""
    inodes: set[str] = set()
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # it ended
        for name in names:
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(file).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((_address(address), int(port, 16)))
    return sorted(found)


def _address(text: str) -> str:
    """Return an address that the kernel wrote as 32-bit words in this machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(address).is_loopback


def ports(context: DoctorContext) -> Iterator[Finding]:
    """The ports of the local head, and whether it requires its token."""
    folder = runtime_folder(context.home) / "r"
    pids = [identity.pid for identity in local_head.processes_of(folder)] if folder.exists() else []
    if not pids:
        yield Finding("ports", Level.OK, "the local target does not run: nothing listens")
        return
    found = listening(pids)
    inside = [port for address, port in found if is_loopback(address)]
    outside = [port for address, port in found if not is_loopback(address)]
    data = {"loopback": inside, "all_interfaces": outside}
    open_heads = [pid for pid in pids if _is_open(pid)]
    if open_heads:
        yield Finding(
            "ports",
            Level.FAIL,
            f"Ray's control process {open_heads[0]} was started without a token: anyone who can "
            f"reach its ports can run code here",
            "Stop it now: rayjobs target stop --force.",
            data,
        )
        return
    yield Finding(
        "ports",
        Level.OK,
        f"{counted(len(inside), 'port')} on loopback; {len(outside)} on all interfaces"
        + (f" ({', '.join(map(str, outside))})" if outside else "")
        + ", which require the token or only serve metrics (docs/security.md)",
        "If others can reach this machine, let a firewall close its ports above 1024."
        if outside
        else "",
        data,
    )


def _is_open(pid: int) -> bool:
    """Whether a process is a GCS that does not require a token."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() != "gcs_server":
            return False
    except OSError:
        return False
    entries = environment_of(pid)
    return bool(entries) and b"RAY_AUTH_MODE=token" not in entries


def tokens(context: DoctorContext) -> Iterator[Finding]:
    """The token files, and the folders that hold files and sockets."""
    good: list[str] = []
    yield from _secrets_of_targets(context)
    problems = list(_token_files(context, good))
    yield from problems
    yield from _folders_of_sockets(context)
    if good:
        yield Finding("token", Level.OK, f"readable only by you: {', '.join(good)}")
    elif not problems:
        yield Finding("token", Level.OK, "none yet; it is created when the local target starts")


def _secrets_of_targets(context: DoctorContext) -> Iterator[Finding]:
    for record in all_targets(home=context.home):
        if record.without_token:
            yield Finding(
                "token",
                Level.WARN,
                f"the cluster of target {record.name} requires no token: anyone who can reach "
                f"{record.address} can run code on it",
                "Start the cluster with RAY_AUTH_MODE=token, then remove the target and create it "
                "again.",
            )
    for record in all_targets(home=context.home):
        secrets = TargetSecrets(record.name, home=context.home).path
        if secrets.exists() and (problem := exposed(secrets, 0o077)):
            yield Finding(
                "token",
                Level.FAIL,
                f"the secrets file of target {record.name}, {secrets}, {problem}",
                f"chmod 600 {secrets}; change the secrets if others may have seen them.",
            )


def _token_files(context: DoctorContext, good: list[str]) -> Iterator[Finding]:
    """Yield the problems of token files; add the targets without a problem to `good`."""
    files = {
        record.name: Path(record.token_file)
        if record.token_file
        else TargetPaths.of(record.name, under=context.home).token
        for record in all_targets(home=context.home)
        if not record.without_token
    }
    for name, path in files.items():
        problem = exposed(path, 0o077)
        if problem:
            yield Finding(
                "token",
                Level.FAIL,
                f"the token file of target {name}, {path}, {problem}: anyone who has it can "
                f"run code on the cluster",
                f"chmod 600 {path}. Others may have read it, so use a new token (for the local "
                f"target, stop and start it).",
            )
        elif path.exists():
            good.append(name)
        elif name != local_head.LOCAL:
            yield Finding(
                "token",
                Level.FAIL,
                f"the token file of target {name} is gone: {path}",
                f"Restore it (0600), or remove the target: rayjobs target rm {name}",
            )


def _folders_of_sockets(context: DoctorContext) -> Iterator[Finding]:
    # Others may list a home's folder, since each of its files is private by itself.
    folders = {runtime_folder(context.home): 0o077, context.home: 0o022}
    if context.workspace is not None:
        folders[context.workspace] = 0o022
    for folder, forbidden in folders.items():
        problem = exposed(folder, forbidden)
        if problem:
            level = Level.FAIL if forbidden == 0o077 else Level.WARN
            yield Finding("token", level, f"the folder {folder} {problem}", f"chmod 700 {folder}")


def exposed(path: Path, forbidden: int) -> str:
    """Return how others could use a file or folder; empty if they cannot, or if it is missing.

    Args:
        forbidden: Bits that its mode must not have.
    """
    try:
        info = path.stat()
    except OSError:
        return ""
    if info.st_uid != os.getuid():
        return f"belongs to user {info.st_uid}"
    if info.st_mode & forbidden:
        return f"is open to others (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""
