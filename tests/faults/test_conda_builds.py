"""Hanging or vanishing channels, kills and a full disk: no partial environment is used.

The channel is a real HTTP server, and py-rattler fetches from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.environments import condas
from rayjobs.environments.building import StoppedError
from rayjobs.launch.leftovers import find_leftovers
from tests.support.conda_channel import Channel
from tests.support.jobs import until
from tests.unit.environments.conftest import Builder, Wish, builder

__all__ = ["builder"]
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


class Server(ThreadingHTTPServer):
    """A channel over HTTP, of which some files do not arrive."""

    daemon_threads = True
    broken = ""
    """Part of a path: these files end in the middle, or never."""
    hangs = True
    requested = threading.Event()
    released = threading.Event()


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        if not server.broken or server.broken not in self.path:
            super().do_GET()
            return
        path = Path(self.translate_path(self.path))
        if not path.exists():
            super().do_GET()
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        server.requested.set()
        if server.hangs:
            server.released.wait(20)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    channel = Channel(tmp_path / "channel")
    channel.add_library("tiny-conda")
    channel.add("large", "1.0", files={"share/large": os.urandom(2**20).hex()})
    channel.index()
    handler = partial(Handler, directory=str(channel.folder))
    with Server(("127.0.0.1", 0), handler) as made:
        made.requested, made.released = threading.Event(), threading.Event()
        serving = threading.Thread(target=made.serve_forever, daemon=True)
        serving.start()
        yield made
        made.released.set()
        made.shutdown()


def packages_of(server: Server) -> dict[str, Any]:
    channels = [f"http://127.0.0.1:{server.server_address[1]}"]
    return {"conda": ["tiny-conda", "large"], "channels": channels}


def whole(builder: Builder) -> list[Path]:
    return [one for one in builder.node.environments.iterdir() if len(one.name) == 32]


def test_a_channel_that_stops_in_the_middle_of_a_package_is_given_up(
    builder: Builder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condas, "STALL_S", 2.0)
    server.broken = "large-1.0"
    with pytest.raises(PrepareError, match="does not arrive: nothing came for 2 s") as caught:
        builder.build(**packages_of(server))
    assert caught.value.failure_class == "environment"
    assert not caught.value.is_permanent
    assert not whole(builder)
    server.broken = ""
    assert builder.build(**packages_of(server))[0].built


def test_a_channel_that_stops_in_the_middle_of_its_index_is_given_up(
    builder: Builder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condas, "INDEX_S", 2.0)
    server.broken = "repodata"
    with pytest.raises(PrepareError, match="the index of a channel does not arrive"):
        builder.build(**packages_of(server))
    server.broken = ""
    monkeypatch.setattr(condas, "INDEX_S", 60.0)
    assert builder.build(**packages_of(server))[0].built


def test_vanishing_channel_leaves_no_partial_environment(builder: Builder, server: Server) -> None:
    server.broken, server.hangs = "large-1.0", False
    with pytest.raises(PrepareError, match="the conda packages cannot be installed"):
        builder.build(**packages_of(server))
    assert not whole(builder)
    server.broken = ""
    assert builder.build(**packages_of(server))[0].built


def while_it_hangs(builder: Builder, server: Server, wish: Wish, act: Any) -> PrepareError:
    """Run an action while a build waits for its channel; return how the build ends."""
    server.broken = "large-1.0"

    async def building() -> None:
        task = asyncio.ensure_future(
            builder.environments().realise({"pip": [], **packages_of(server)}, wish.work)
        )
        await asyncio.to_thread(server.requested.wait, 120)
        act()
        await task

    with pytest.raises(PrepareError) as caught:
        asyncio.run(building())
    return caught.value


def test_killed_conda_build_is_never_used(builder: Builder, server: Server) -> None:
    wish = builder.wish()

    def kill() -> None:
        for one in find_leftovers(wish.work.control.marker):
            os.kill(one.pid, signal.SIGKILL)

    error = while_it_hangs(builder, server, wish, kill)
    assert error.failure_class == "system"
    assert "was killed (signal 9)" in str(error)
    assert not whole(builder)
    server.broken = ""
    assert builder.build(**packages_of(server))[0].built


def test_end_of_a_job_ends_its_conda_build(builder: Builder, server: Server) -> None:
    wish = builder.wish()
    error = while_it_hangs(builder, server, wish, wish.work.control.stopped.set)
    assert isinstance(error, StoppedError)
    until(lambda: not find_leftovers(wish.work.control.marker), "the end of its processes")
    assert not whole(builder)


def test_full_disk_during_conda_install_is_a_storage_failure(
    tmp_path: Path, server: Server
) -> None:
    """On a file system of 1 MiB, in the mount namespace of a separate process."""
    script = f"""
import os
from pathlib import Path
from rayjobs.injob import kernel
from rayjobs.core.errors import PrepareError
from tests.unit.environments.conftest import Builder
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
node = Path({str(tmp_path / "small")!r})
(node / "environments").mkdir(parents=True)
kernel.mount("tmpfs", str(node / "environments"), "tmpfs", 0, "size=1m")
try:
    Builder(node).build(**{packages_of(server)!r})
except PrepareError as error:
    left = [one for one in os.listdir(node / "environments") if len(one) == 32]
    print(error.failure_class, "|", error, "|", left)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("storage | "), done
    assert done.stdout.rstrip().endswith("| []"), done
    assert "is full" in done.stdout
