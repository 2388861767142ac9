"""`rayjobs port`: forward a local port to a port of a running job."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayjobs.cli.asking import check_running
from rayjobs.cli.naming import newest_named
from rayjobs.cli.params import job_argument
from rayjobs.cli.reporting import say
from rayjobs.cli.sessions import PIECE, Session, SessionRefusedError, data_of
from rayjobs.cli.settings import Settings, common_options
from rayjobs.core.errors import NotFoundError, RayjobsError, UsageError
from rayjobs.jobs.records import Job

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection

HERE = "127.0.0.1"
LOOK_S = 1.0

EPILOG = """\b
Examples:
  rayjobs port 1f3c 6006          http://127.0.0.1:6006 is the job's TensorBoard
  rayjobs port 1f3c 8888:8080 --rank 1
  rayjobs port 1f3c 0:5678        any free port here

Only ports on which processes of the job listen can be reached. Ctrl-C ends it.
"""


@click.command(epilog=EPILOG)
@job_argument
@click.argument("ports", metavar="[LOCAL:]PORT")
@click.option(
    "--rank",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Rank that listens on the port.",
)
@common_options
@click.pass_obj
def port(settings: Settings, job: str, ports: str, rank: int) -> None:
    """Listen here, and forward each connection to a port of a running job."""
    local, remote = _ports(ports)
    with settings.open() as workspace:
        found = newest_named(settings, workspace.store, job)
        check_running(found)
        if workspace.server is not None:
            _check_may_reach(workspace.server, found)
        try:
            listener = socket.create_server((HERE, local))
        except OSError as error:
            raise UsageError(
                f"port {local} of this machine cannot be used ({os.strerror(error.errno or 0)}); "
                f"name another: `rayjobs port {job} 0:{remote}` takes a free one"
            ) from None
        with listener:
            listener.settimeout(LOOK_S)
            number = listener.getsockname()[1]
            click.echo(f"http://{HERE}:{number} → port {remote} of rank {rank} of {found.id}")
            tunnels = _Tunnels(found, workspace.path, rank, remote, workspace.server)
            while True:
                with contextlib.suppress(TimeoutError):
                    client, _ = listener.accept()
                    threading.Thread(target=tunnels.serve, args=(client,), daemon=True).start()
                    continue
                if (now := workspace.store.job(found.id)).state.is_final:
                    settings.note(f"{now.id} has ended ({now.state})")
                    return


def _check_may_reach(server: Connection, job: Job) -> None:
    """Refuse immediately what the server would refuse for each connection."""
    from rayjobs.workspace.http_messages import CurrentUser

    me = server.ask("GET", "/v1/user", CurrentUser)
    if me.role == "viewer":
        raise UsageError(f"{me.user} has the role viewer; this needs the role submitter")
    if me.role != "admin" and job.user != me.user:
        raise UsageError(f"job {job.id} is {job.user}'s: only an admin may reach jobs of others")


def _ports(text: str) -> tuple[int, int]:
    """Return the local port and the job's port."""
    here, _, there = text.rpartition(":")
    try:
        remote = int(there)
        local = int(here) if here else remote
    except ValueError:
        raise UsageError(f"{text!r} is not [LOCAL:]PORT") from None
    if not (0 <= local < 65536 and 0 < remote < 65536):
        raise UsageError(
            f"{text!r}: a job's port is between 1 and 65535; the local port may also be 0, which "
            f"takes a free one"
        )
    return local, remote


class _Tunnels:
    """Forwards connections to a port of a job."""

    def __init__(
        self, job: Job, workspace: Path, rank: int, port: int, server: Connection | None
    ) -> None:
        self._job = job
        self._workspace = workspace
        self._rank = rank
        self._port = port
        self._server = server
        self._reported = ""

    def serve(self, client: socket.socket) -> None:
        """Forward one connection until one side closes it."""
        session = Session(self._job, self._workspace, self._rank, self._server)
        channel = session.channel()
        with client:
            try:
                channel.connect(self._port)
                sending = threading.Thread(target=self._send, args=(client, session), daemon=True)
                sending.start()
                while True:
                    for event in channel.read():
                        if event.stream == 0:
                            return
                        client.sendall(data_of(event))
            except (SessionRefusedError, NotFoundError) as error:
                self._report(error.message)
            except (RayjobsError, OSError) as error:
                self._report(str(error))
            finally:
                with contextlib.suppress(RayjobsError, OSError):
                    channel.end()
                    client.shutdown(socket.SHUT_RDWR)
                channel.close()

    def _send(self, client: socket.socket, session: Session) -> None:
        channel = session.channel()
        try:
            while True:
                data = client.recv(PIECE)
                channel.write(data, is_last=not data)
                if not data:
                    return
        except (RayjobsError, OSError):
            return  # the other direction sees the end
        finally:
            channel.close()

    def _report(self, problem: str) -> None:
        """Report a problem once, not for each connection of a browser."""
        if problem != self._reported:
            self._reported = problem
            say(f"note: {problem}")
