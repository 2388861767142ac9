"""The process that keeps one mount: it starts and watches the server process, and cleans up.

It lives outside the process tree of the mount's first user (own session, forked twice), so that the
end of this user does not end the mount for others. It exits after the last user has left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from rayjobs.core.files import locked
from rayjobs.datastore.mountfiles import MountFolder, unmount
from rayjobs.injob.identity import Identity, identity_of, own_identity

LOOK_S = 0.25
"""How often a keeper checks its mount and its users."""
END_GRACE_S = 5.0


def keep(folder: MountFolder) -> None:
    """Keep the mount until its last user has gone."""
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "rayjobs.datastore.fusemount", str(folder.folder)],
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
    _note(folder, own_identity(), identity_of(server.pid))
    is_reported = False
    while True:
        status = server.poll()
        if status is not None and not is_reported:
            is_reported = True
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            folder.say_trouble("MountLost", f"the process behind the mount ended with {how}")
            _note(folder, own_identity(), None)
        if not folder.users():
            # Check again under the lock: a new user may just be arriving.
            with locked(folder.lock):
                if not folder.folder.is_dir() or not folder.users():
                    _end(folder, server)
                    return
        time.sleep(LOOK_S)


def _end(folder: MountFolder, server: subprocess.Popen[bytes]) -> None:
    unmount(folder.point)
    try:
        server.wait(timeout=END_GRACE_S)  # a server exits once unmounted
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    folder.remove()


def _note(folder: MountFolder, keeper: Identity | None, server: Identity | None) -> None:
    record = folder.read()
    if record is None:
        return
    try:
        folder.write(replace(record, keeper=keeper, server=server))
    except FileNotFoundError:
        return  # released meanwhile


def main(arguments: list[str]) -> None:
    """Leave the caller's process tree by forking, then keep the mount named on the command line."""
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keep(MountFolder(Path(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
