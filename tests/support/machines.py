"""Two simulated machines, each with its own networks, host name and /etc/hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rayjobs.injob.identity import Identity
from tests.conformance.hosts import Attempt, base_env, until

KINDS = ("--net", "--uts", "--mount")
# Addresses in the network that joins both machines; prefixes have 24 bits.
JOINED = ("10.77.0.1", "10.77.0.2")
# An address in a network that each machine has for itself, such as Docker's.
APART = "192.168.77.1"

START = """
import asyncio, json, sys
from rayjobs.launch import hostclient
plan, env = sys.argv[1], json.loads(sys.argv[2])
host = asyncio.run(hostclient.start_cold(plan, reason="requested", env=env, secrets={}))
print(json.dumps(host.to_json()))
"""


@cache
def why_not() -> str:
    """Return why this machine cannot be divided; empty when it can."""
    for program in ("ip", "unshare", "nsenter", "hostname", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    command = ["ip", "link", "add", "veth0", "type", "veth", "peer", "veth1"]
    tried = subprocess.run(
        ["unshare", *KINDS, "--", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    return tried.stderr.strip() if tried.returncode else ""


@dataclass(frozen=True)
class Machine:
    """Namespaces that a process holds."""

    address: str
    holder: int

    def run(self, *command: str) -> str:
        """Run a command on the machine; return its output."""
        inside = ["nsenter", f"--target={self.holder}", *KINDS, "--"]
        done = subprocess.run([*inside, *command], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def start(self, attempt: Attempt) -> Attempt:
        """Start a cold host on the machine."""
        output = self.run(sys.executable, "-c", START, attempt.write_plan(), json.dumps(base_env()))
        attempt.identity = Identity.from_json(json.loads(output))
        return attempt


@contextmanager
def two_machines(folder: Path, *, own_name_leads_to: str) -> Iterator[tuple[Machine, Machine]]:
    """Make two machines that one network joins, and whose own names lead to another address."""
    with ExitStack() as stack:
        holders = [stack.enter_context(_held()) for _ in range(2)]
        # The interfaces of nodes may have different names.
        nics = ("lan0", "eno1")
        made = tuple(Machine(JOINED[n], holder) for n, holder in enumerate(holders))
        made[0].run(
            *("ip", "link", "add", nics[0], "type", "veth"),
            *("peer", nics[1], "netns", str(holders[1])),
        )
        for number, machine in enumerate(made):
            name = f"worker{number}"
            hosts = folder / f"hosts-{name}"
            hosts.write_text(f"127.0.0.1 localhost\n{own_name_leads_to} {name}\n")
            machine.run("mount", "--bind", str(hosts), "/etc/hosts")
            machine.run("hostname", name)
            machine.run("ip", "link", "add", "apart0", "type", "veth", "peer", "apart1")
            machine.run("ip", "address", "add", f"{APART}/24", "dev", "apart0")
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", nics[number])
            for nic in ("lo", "apart0", "apart1", nics[number]):
                machine.run("ip", "link", "set", nic, "up")
        yield made[0], made[1]


@contextmanager
def _held() -> Iterator[int]:
    """Create namespaces that a process holds; yield its pid."""
    holder = subprocess.Popen(["unshare", *KINDS, "--", "sleep", "infinity"])
    try:
        comm = Path(f"/proc/{holder.pid}/comm")
        until(lambda: comm.read_text() == "sleep\n", "the namespaces exist")
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()
