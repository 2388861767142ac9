"""Two servers of one workspace in PostgreSQL and S3, and a client that reaches only their ports.

Neither server runs on the target's machine; the client has no folder, no database and no bucket.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.workspace import shared
from tests.storage.blobs import address_in
from tests.storage.postgres import Postgres
from tests.storage.server import S3Server
from tests.support.jobs import leaving
from tests.support.local_target import LocalTarget
from tests.support.machines_apart import OtherMachine, needs_mounts

LONGEST_S = 60.0


@dataclass
class Serving:
    """`rayjobs serve` on a separate machine."""

    machine: OtherMachine
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self.process = self.machine.begin(
            "serve", "--port", str(self.port), "--bucket-address", "none"
        )
        end_s = time.monotonic() + LONGEST_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < end_s and self.process.poll() is None
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@dataclass
class TeamServers:
    """The two servers, the client, and the workspace on the target's machine."""

    first: Serving
    second: Serving
    client: OtherMachine
    token: str
    folder: Path
    all: list[Serving] = field(default_factory=list)

    def through(self, *servers: Serving) -> OtherMachine:
        """Return the client with these servers in its address."""
        address = ",".join(one.address for one in servers)
        variables = {**self.client.variables, "RAYJOBS_ADDRESS": address}
        return OtherMachine(self.client.home, self.client.hidden, variables)


@pytest.fixture
def team_servers(
    target: LocalTarget,
    server: Postgres,
    s3_server: S3Server,
    given_keys: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[TeamServers]:
    """Two servers of a workspace whose target runs on another machine."""
    needs_mounts()
    here = tmp_path / "here"
    with shared.create(here / "w", server.url, blobs=address_in(s3_server)).workspace:
        pass
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(here / "w"))
    (here / "hello.py").write_text("print('hello')")
    assert run(["submit", "--attach", str(here / "hello.py")]) == 0
    assert run(["workspace", "show", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out.partition("{")[2].join(["{", ""]))
    store = shown["join"].split("'")[1]
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    made = []
    for home in homes:
        hidden = [target.home, here, *(one for one in homes if one != home)]
        machine = OtherMachine(home, hidden, {"RAYJOBS_WORKSPACE": str(home / "w")})
        joined = machine.run("workspace", "add", str(home / "w"), "--store", store)
        assert joined.returncode == 0, joined.stderr
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            made.append(Serving(machine, int(probe.getsockname()[1])))
    added = made[0].machine.run("user", "add", "ada")
    assert added.returncode == 0, added.stderr
    token = added.stdout.strip().splitlines()[-1]
    (tmp_path / "client").mkdir()
    nothing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "RAYJOBS_WORKSPACE": ""}
    client = OtherMachine(
        tmp_path / "client", [target.home, here, *homes], {**nothing, "RAYJOBS_TOKEN": token}
    )
    try:
        for one in made:
            one.start()
        with leaving(here / "w"):
            yield TeamServers(made[0], made[1], client, token, here / "w", made)
    finally:
        for one in made:
            one.kill()
