"""A Ray cluster of several raylets on this machine, each with an address and scratch of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rayjobs.compute import localhead, targets
from rayjobs.compute.targetrecord import TargetRecord, save_target
from rayjobs.paths import TargetPaths
from tests.jobs import until

TARGET = "pool"
# Ray gives up a node after three checks without an answer: some seconds, not a minute.
FAST_CHECKS = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class Node:
    """One raylet: its address and scratch, and what started it."""

    address: str
    scratch: Path
    starter: subprocess.Popen[bytes]

    @property
    def raylet(self) -> psutil.Process:
        """The raylet's own process."""
        for process in psutil.Process(self.starter.pid).children(recursive=True):
            if process.name() == "raylet":
                return process
        raise LookupError(f"no raylet of {self.address} runs")


@dataclass
class Cluster:
    """A head that takes no jobs, and nodes that do."""

    folder: Path
    home: Path
    address: str
    token: Path
    nodes: list[Node] = field(default_factory=list)
    number: int = 1

    def start(self, *arguments: str, scratch: Path) -> subprocess.Popen[bytes]:
        """Run `ray start` in the foreground."""
        environment = {
            **localhead.head_environment(self.home, self.token),
            **FAST_CHECKS,
            "RAYJOBS_SCRATCH": str(scratch),
            "RAYJOBS_SHARES_DISK": "0",
        }
        ray = Path(sys.executable).with_name("ray")
        with (self.folder / f"ray-{self.number}.log").open("wb") as log:
            return subprocess.Popen(
                [str(ray), "start", "--block", "--disable-usage-stats", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )

    def add(self, cpus: int = 2) -> Node:
        """Start a node with a loopback address and a scratch folder of its own."""
        self.number += 1
        address = f"{self.address.rpartition('.')[0]}.{self.number}"
        scratch = self.folder / f"n{self.number}"
        scratch.mkdir()
        starter = self.start(
            f"--address={self.address}",
            f"--node-ip-address={address}",
            f"--num-cpus={cpus}",
            "--object-store-memory=80000000",
            scratch=scratch,
        )
        # One after another: raylets of one machine that start at once wait for each other's files.
        log = self.folder / f"ray-{self.number}.log"
        until(lambda: "runtime started" in log.read_text(), f"the node {address} starts")
        node = Node(address, scratch, starter)
        self.nodes.append(node)
        return node

    def wait_for_nodes(self, count: int) -> None:
        """Wait until the target sees so many nodes, its head among them."""

        capacity = TargetPaths.of(TARGET, under=self.home).root / "capacity.json"

        def seen() -> bool:
            known = localhead.read_json(capacity) or {"nodes": []}
            return len(known["nodes"]) >= count

        until(seen, f"the target sees {count} nodes")

    def node_at(self, address: str) -> Node:
        """Return the node with an address."""
        (found,) = [node for node in self.nodes if node.address == address]
        return found

    def remove(self, node: Node) -> None:
        """End a node and all that it started."""
        self.nodes.remove(node)
        _end(node.starter)


def _end(starter: subprocess.Popen[bytes]) -> None:
    """End a foreground `ray start` with everything below it, stopped processes too."""
    try:
        tree = [*psutil.Process(starter.pid).children(recursive=True), psutil.Process(starter.pid)]
    except psutil.NoSuchProcess:
        tree = []
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    starter.wait()


@contextmanager
def ray_cluster(home: Path, *, lease_s: float) -> Iterator[Cluster]:
    """Run a head, and a target called `pool` on it whose actor lives with the head."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rjc-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = folder / "token"
        localhead.write_private(token, secrets.token_hex(32))
        head = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
        address = f"{head}:{localhead.free_port()}"
        cluster = Cluster(folder, home, address, token)
        stack.callback(_end_all, folder)
        starter = cluster.start(
            "--head",
            f"--node-ip-address={head}",
            f"--port={address.rpartition(':')[2]}",
            f"--temp-dir={folder / 'r'}",
            "--num-cpus=0",
            "--include-dashboard=false",
            "--object-store-memory=80000000",
            scratch=folder / "n1",
        )
        cluster.nodes.append(Node(head, folder / "n1", starter))
        # The shortest that is fair is a minute and a half, which no test waits for.
        save_target(
            TargetRecord(TARGET, address=address, token_file=str(token), lease_s=lease_s),
            home=home,
        )
        until(lambda: _is_up(address), "Ray's head answers")
        targets.start_target(TARGET, home=home)
        try:
            yield cluster
        finally:
            for node in cluster.nodes:
                for process in psutil.Process(node.starter.pid).children(recursive=True):
                    if process.status() == psutil.STATUS_STOPPED:
                        process.send_signal(signal.SIGCONT)
            targets.stop_target(TARGET, force=True, home=home)
            for node in list(cluster.nodes):
                cluster.remove(node)


def _is_up(address: str) -> bool:
    import socket

    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def _end_all(folder: Path) -> None:
    """End what still names the cluster's folder: agents and workers whose raylet was killed."""
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("RAYJOBS_SCRATCH", "")]
        except (psutil.Error, OSError):
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            process.kill()
