"""Short paths for the temporary folders of attempts, so that scripts can make Unix sockets in them.

The path of a Unix socket has 107 bytes at most. Below TMPDIR, Python's `multiprocessing` makes the
sockets of managers, and PyTorch those of the workers of a `DataLoader`. If the path is too long,
the workers fail, and the loader waits forever.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rayjobs.core.paths import AttemptPaths, runtime_dir

SOCKET_PATH_BYTES = 107
# `multiprocessing` appends `/pymp-xxxxxxxx/listener-xxxxxxxx`, 32 bytes; libraries may append more.
SOCKET_NAME_BYTES = 48
_KIND = "tmp-"


def provide(tmp: Path) -> Path:
    """Return a path to a temporary folder that is short enough for sockets; a link if needed.

    Raises:
        OSError: the link cannot be made.
    """
    if len(os.fsencode(tmp)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
        return tmp
    link = _link(tmp, create=True)
    link.unlink(missing_ok=True)  # left by a start that was undone
    link.symlink_to(tmp)
    return link


def remove(tmp: Path) -> None:
    """Remove the link to a temporary folder, if it has one."""
    _link(tmp, create=False).unlink(missing_ok=True)


def clean(folder: Path) -> None:
    """Remove the links in a runtime folder whose attempt has ended; renew the age of the others.

    Many machines remove old files from ``/tmp``.
    """
    for link in folder.glob(f"{_KIND}*"):
        if not link.is_symlink():
            continue
        tmp = link.readlink()
        if tmp.is_dir() and not AttemptPaths(tmp.parent).exit.exists():
            os.utime(link, follow_symlinks=False)
        else:
            link.unlink(missing_ok=True)


def _link(tmp: Path, *, create: bool) -> Path:
    digest = hashlib.sha256(os.fsencode(tmp)).hexdigest()[:16]
    return runtime_dir(create=create) / f"{_KIND}{digest}"
