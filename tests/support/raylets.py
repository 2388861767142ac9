"""A Ray cluster of several raylets on this machine, each with its own address and scratch."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from rayjobs.core.files import write_private
from rayjobs.core.paths import TargetPaths
from rayjobs.target import local_head, starting, targets
from rayjobs.target.record import TargetRecord, save_target
from rayjobs.target.reports import CapacityReport
from rayjobs.workspace.folder import locate, open_workspace
from tests.support.jobs import Jobs, until
from tests.support.local_target import remove_runtime_folder

TARGET = "pool"
CPUS = 2
START_TRIES = 3
START_S = 50.0
# An unreachable host ends its ranks after two thirds of the lease, 12 s.
LEASE_S = 18.0
# Ray's own timeouts for a node, which differ from those of a local head.
USUAL_CHECKS = {
    "RAY_health_check_timeout_ms": "10000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
}
# Ray gives up a node after three unanswered checks: some seconds, instead of a minute.
FAST_CHECKS = {
    **USUAL_CHECKS,
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}

RAYLETS = [pytest.mark.ray, pytest.mark.xdist_group("raylets")]


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
    checks: Mapping[str, str] = field(default_factory=lambda: FAST_CHECKS)
    nodes: list[Node] = field(default_factory=list)
    number: int = 1

    def start(self, *arguments: str, scratch: Path) -> subprocess.Popen[bytes]:
        """Run `ray start` in the foreground."""
        environment = {
            **local_head.head_environment(self.home, self.token),
            **self.checks,
            "RAYJOBS_SCRATCH": str(scratch),
            "RAYJOBS_SHARES_DISK": "0",
        }
        return ray_start(
            *arguments, log=self.folder / f"ray-{self.number}.log", environment=environment
        )

    def begin(self) -> None:
        """Start a node with its own loopback address and scratch folder, without waiting.

        Nodes start one at a time: raylets that start together on one machine may hang.
        """
        self.wait_for_last()
        self.number += 1
        address = f"{self.address.rpartition('.')[0]}.{self.number}"
        scratch = self.folder / f"n{self.number}"
        scratch.mkdir()
        self.nodes.append(Node(address, scratch, self.start_node(address, scratch)))

    def start_node(self, address: str, scratch: Path) -> subprocess.Popen[bytes]:
        """Run `ray start` for a node."""
        return self.start(
            f"--address={self.address}",
            f"--node-ip-address={address}",
            f"--num-cpus={CPUS}",
            "--object-store-memory=80000000",
            scratch=scratch,
        )

    def wait_for_last(self) -> None:
        """Wait until the last node of `begin` has started.

        A raylet may hang if another one of any cluster starts on this machine at the same time: it
        is then restarted.
        """
        log = self.folder / f"ray-{self.number}.log"
        tries = 1 if self.number == 1 else START_TRIES
        patience_s = START_S * START_TRIES / tries
        for left in reversed(range(tries)):
            try:
                until(lambda: "runtime started" in log.read_text(), "", deadline_s=patience_s)
            except AssertionError:
                if not left:
                    log_tail = log.read_text()[-2000:]
                    raise AssertionError(f"node {self.number} does not start: {log_tail}") from None
                last = self.nodes.pop()
                end_tree(last.starter)
                again = self.start_node(last.address, last.scratch)
                self.nodes.append(replace(last, starter=again))
            else:
                return

    def ensure(self, count: int) -> None:
        """Start nodes until `count` take jobs; wait until the target sees exactly these nodes."""
        while len(self.nodes) - 1 < count:
            self.begin()
        addresses = {node.address for node in self.nodes}
        paths = TargetPaths.of(TARGET, under=self.home)

        def seen() -> bool:
            return {node.address for node in CapacityReport.read(paths).nodes} == addresses

        until(seen, f"the target sees {sorted(addresses)}")

    def node_at(self, address: str | None) -> Node:
        """Return the node with the address in a host's record."""
        (found,) = [node for node in self.nodes if node.address == address]
        return found

    def remove(self, node: Node) -> None:
        """End a node and all its processes."""
        self.nodes.remove(node)
        end_tree(node.starter)


def ray_start(*arguments: str, log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Run `ray start` in the foreground, in a separate session."""
    ray = Path(sys.executable).with_name("ray")
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(ray), "start", "--block", "--disable-usage-stats", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )


def end_tree(starter: subprocess.Popen[bytes]) -> None:
    """Kill a foreground `ray start` with all its descendants, including stopped ones."""
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
def ray_cluster(
    home: Path, *, checks: Mapping[str, str] = FAST_CHECKS, lease_s: float = LEASE_S
) -> Iterator[Cluster]:
    """Run a head, a node, and a target `pool` whose actor is on the head.

    Args:
        checks: How soon Ray gives up a node that does not answer.
        lease_s: The target's lease. The minimum for users, 90 s, is too long for most tests.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rjc-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        token = folder / "token"
        write_private(token, secrets.token_hex(32))
        head = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.1"
        address = f"{head}:{local_head.free_port()}"
        cluster = Cluster(folder, home, address, token, checks)
        stack.callback(end_all, folder)
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
        save_target(
            TargetRecord(TARGET, address=address, token_file=str(token), lease_s=lease_s),
            home=home,
        )
        cluster.begin()  # while the target starts
        try:
            targets.start_target(TARGET, home=home)
            yield cluster
        finally:
            for node in cluster.nodes:
                for process in psutil.Process(node.starter.pid).children(recursive=True):
                    if process.status() == psutil.STATUS_STOPPED:
                        process.send_signal(signal.SIGCONT)
            targets.stop_target(TARGET, force=True, home=home)
            for node in list(cluster.nodes):
                cluster.remove(node)


@pytest.fixture(scope="session")
def shared_raylets(session_root: Path) -> Iterator[Cluster]:
    """The run's one cluster of several raylets; tests use `raylets`."""
    home = session_root / "c"
    with ray_cluster(home) as cluster:
        yield cluster
    remove_runtime_folder(home)


@pytest.fixture
def raylets(shared_raylets: Cluster, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of raylets that share nothing but Ray, with RAYJOBS_HOME set to its home.

    Call `ensure` with the number of nodes that the test needs: earlier tests may have lost some.
    Mark tests with `RAYLETS`, so that they run in one worker, with one cluster.
    """
    monkeypatch.setenv("RAYJOBS_HOME", str(shared_raylets.home))
    return shared_raylets


@pytest.fixture
def pool_jobs(raylets: Cluster, tmp_path: Path) -> Iterator[Jobs]:
    """A workspace for this test, whose jobs name the target `pool`."""
    with open_workspace(locate()) as workspace:
        made = Jobs(workspace, tmp_path)
        yield made
        for job in made.store.jobs():
            if not job.state.is_final:
                made.store.request_cancel(job.id)
        starting.wake(TARGET, home=raylets.home, workspace=workspace.path)
        for job in made.store.jobs():
            made.wait(job)


def end_all(folder: Path) -> None:
    """End processes that still name the cluster's folder: orphans of killed raylets."""
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), process.environ().get("RAYJOBS_SCRATCH", "")]
        except (psutil.Error, OSError):
            continue
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            process.kill()
