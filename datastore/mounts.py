"""Mounts of this node, for their users: acquire, release, get errors, reap."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

from rayjobs.core.files import locked
from rayjobs.datastore import credentials, errors
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.digests import digest_of_text
from rayjobs.datastore.errors import MountLost, MountUnavailable
from rayjobs.datastore.manifest import Manifest
from rayjobs.datastore.mountfiles import (
    MountFolder,
    MountRecord,
    generations,
    is_mounted,
    unmount,
)
from rayjobs.injob.identity import Identity, is_alive, own_identity, stat_of
from rayjobs.injob.lazy_dataclass import dataclass

UP_LIMIT_S = 60.0
_LOOK_S = 0.02
_SYSTEM = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_NETWORK = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_PASSED_ON = frozenset((*_SYSTEM, *_NETWORK, *_PROXIES))
_PASSED_ON_PREFIXES = ("AWS_", "XDG_")


@dataclass(frozen=True)
class Mount:
    """One user's reference to a mount; any process can release it with `folder` and `token`."""

    point: Path
    folder: Path
    token: str


def fuse_missing() -> str:
    """Return why this machine cannot mount, in words; "" if it can."""
    if os.environ.get("DATASTORE_NO_FUSE"):
        return "DATASTORE_NO_FUSE is set"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing or not accessible"
    if find_library("fuse3") is None and find_library("fuse") is None:
        return "the FUSE library is not installed (Debian: fuse3)"
    if find_spec("mfusepy") is None:
        return "the Python package mfusepy is not installed"
    if shutil.which("fusermount3") is None and os.geteuid() != 0:
        return "fusermount3 is not installed (Debian: fuse3)"
    return ""


def acquire(
    manifest: Manifest,
    records: Mapping[str, DatastoreRecord],
    mounts_root: Path,
    *,
    cache_root: Path,
    cache_bytes: int | None = None,
    owner: Identity | None = None,
) -> Mount:
    """Mount the files of `manifest`, or share an existing mount of them on this node.

    The mount stays until `release`, or until process `owner` (default: this one) ends.

    Raises:
        MountUnavailable: the mount did not start; the message has the output of its process.
    """
    owner = owner or own_identity()
    names = "\n".join(str(records[name].to_json()) for name in sorted(records))
    key = digest_of_text(f"{manifest.digest}\n{names}\n{cache_root}")[7:23]
    mount = mounts_root / key
    token = secrets.token_hex(8)
    with locked(mounts_root / f"{key}.lock"):
        latest = 0
        for folder in list(generations(mount)):
            latest = int(folder.folder.name[1:])
            if is_good(folder):
                folder.add_user(token, owner)
                return Mount(folder.point, folder.folder, token)
            if not folder.users():
                _clear(folder)
        folder = MountFolder(mount / f"g{latest + 1}")
        (folder.folder / "users").mkdir(parents=True)
        folder.point.mkdir()
        folder.manifest.write_bytes(manifest.to_bytes())
        folder.write(MountRecord(tuple(records.values()), str(cache_root), cache_bytes))
        folder.add_user(token, owner)
        try:
            _start(folder)
        except BaseException:
            folder.drop_user(token)
            _clear(folder)
            raise
    return Mount(folder.point, folder.folder, token)


def retain(folder: Path, token: str, owner: Identity) -> None:
    """Add a user to an existing mount; do nothing if the mount is gone."""
    mount = MountFolder(folder)
    if not folder.is_dir():
        return
    with locked(mount.lock):
        try:
            mount.add_user(token, owner)
        except FileNotFoundError:
            return  # removed before we got the lock


def release(folder: Path, token: str) -> None:
    """Release one user's reference; releasing the last one unmounts.

    This includes the references that `retain` derived from it (`<token>-…`). A second call changes
    nothing.
    """
    mount = MountFolder(folder)
    if not folder.is_dir():
        return
    with locked(mount.lock):
        for user in mount.users():
            if user == token or user.startswith(f"{token}-"):
                mount.drop_user(user)
        if not mount.users():
            _clear(mount)


def trouble(folder: Path) -> errors.DatastoreError | None:
    """Return the first error of the mount, or that it is dead; None if nothing went wrong."""
    mount = MountFolder(folder)
    for kind, message in mount.troubles():
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, errors.DatastoreError):
            return known(message)
    if not is_good(mount):
        return MountLost(
            f"the mount at {mount.point} is dead: the process behind it is gone or stopped. "
            "Reads from it failed; run the job again, which gets a new mount."
        )
    return None


def reap(mounts_root: Path) -> list[Path]:
    """Remove every mount below `mounts_root` that no live process uses.

    Call it when a node's service starts. Returns the removed mount points.
    """
    gone: list[Path] = []
    if not mounts_root.is_dir():
        return gone
    for mount in sorted(mounts_root.iterdir()):
        if not mount.is_dir():
            continue
        with locked(mounts_root / f"{mount.name}.lock"):
            for folder in list(generations(mount)):
                if not folder.users():
                    _clear(folder)
                    gone.append(folder.point)
    return gone


def is_good(folder: MountFolder) -> bool:
    """Return whether a mount exists and its process can answer, without accessing the mount."""
    record = folder.read()
    if record is None or record.server is None or not is_alive(record.server):
        return False
    return is_mounted(folder.point) and not _is_stopped(record.server.pid)


def _is_stopped(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.state in "Tt"


def _start(folder: MountFolder) -> None:
    with folder.log.open("ab") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-P", "-m", "rayjobs.datastore.mountkeeper", str(folder.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(folder),
            start_new_session=True,
        )
    launcher.wait()
    deadline = time.monotonic() + UP_LIMIT_S
    while time.monotonic() < deadline:
        if is_good(folder):
            return
        if any(kind == "MountLost" for kind, _ in folder.troubles()):
            break
        time.sleep(_LOOK_S)
    printed = folder.log.read_text(errors="replace").strip().splitlines()
    raise MountUnavailable(
        f"the mount at {folder.point} did not start; its process printed: "
        f"{printed[-1] if printed else 'nothing'}"
    )


def _environment(folder: MountFolder) -> dict[str, str]:
    """Return the environment of a mount's processes, without a marker: they belong to no job."""
    record = folder.read()
    named: set[str] = set()
    for kept in record.records if record else ():
        named.update(value for name, value in kept.settings.items() if name.endswith("_env"))
    environment = {
        name: value
        for name, value in credentials.environment().items()
        if name in _PASSED_ON or name in named or name.startswith(_PASSED_ON_PREFIXES)
    }
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    return environment


def _clear(folder: MountFolder) -> None:
    """Unmount, end the server process and remove the folder; the keeper notices and exits.

    The caller holds the lock.
    """
    record = folder.read()
    unmount(folder.point)
    server = record.server if record else None
    if server is not None and is_alive(server):
        try:
            os.kill(server.pid, signal.SIGKILL)  # it holds no data: cached files are complete
        except ProcessLookupError:
            pass  # it exited once unmounted
    folder.remove()
