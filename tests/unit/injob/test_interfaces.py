"""Which network interface a node's ranks are told to use."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from rayjobs.compute.node import Node
from rayjobs.injob.interfaces import interface_of, variables
from rayjobs.injob.plan import parse
from rayjobs.launch.network import unknown_interface
from rayjobs.launch.plan import AttemptContext, Place, launcher_for
from rayjobs.records import Job
from rayjobs.spec import JobSpec
from rayjobs.workspace_files import open_workspace
from tests.unit.injob.test_plan import values

NOWHERE = "203.0.113.9"  # no machine has it: RFC 5737


def test_each_address_of_this_machine_leads_to_its_interface() -> None:
    names: dict[str, set[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                names.setdefault(one.address.partition("%")[0], set()).add(name)
    assert "127.0.0.1" in names
    for address, among in names.items():
        assert interface_of(address) in among, address


@pytest.mark.parametrize("address", [NOWHERE, "2001:db8::9", "worker-1", "no:address", ""])
def test_an_address_of_another_machine_leads_nowhere(address: str) -> None:
    assert interface_of(address) is None
    assert variables(address) == {}


def test_nodes_of_one_machine_have_loopback_addresses_that_it_does_not_list() -> None:
    assert interface_of("127.93.4.2") == "lo"


def test_ranks_are_told_the_interface_unless_the_job_names_one() -> None:
    told = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "HOROVOD_GLOO_IFACE": "lo"}
    plan = parse(values(address="127.0.0.1"))
    assert told.items() <= plan.rank_env(plan.ranks[0], {}).items()
    chosen = {"GLOO_SOCKET_IFNAME": "eth7"}
    plan = parse(values(address="127.0.0.1", env=chosen))
    assert (told | chosen).items() <= plan.rank_env(plan.ranks[0], {}).items()
    alone = parse(values())
    assert not told.keys() & alone.rank_env(alone.ranks[0], {}).keys()


def test_an_address_that_no_interface_has_is_told_where_ranks_must_meet_others() -> None:
    plan = {"node": 1, "node_count": 2, "env": {}, "address": NOWHERE}
    assert f"node 1 has its address {NOWHERE}" in unknown_interface(plan)
    assert unknown_interface({**plan, "node_count": 1}) == ""
    assert unknown_interface({**plan, "address": None}) == ""
    assert unknown_interface({**plan, "address": "127.0.0.1"}) == ""
    assert unknown_interface({**plan, "env": {"NCCL_SOCKET_IFNAME": "ib0"}}) == ""


def test_the_history_says_so(tmp_path: Path) -> None:
    node = Node("local", tmp_path / "home")
    shape = {"nodes": 2, "processes_per_node": 1, "backend": "gloo"}
    with open_workspace(tmp_path / "ws", create=True) as workspace:
        for number, (address, count) in enumerate(((NOWHERE, 1), ("127.0.0.1", 0))):
            job, _ = workspace.store.submit(
                JobSpec.model_validate({"script": "train.py", "distribution": shape}),
                experiment="net",
                snapshot=None,
                user="ada",
            )
            assert workspace.store.start(job.id, attempt=0, allocation=str(number)) is not None
            order = {
                "workspace": str(workspace.path),
                "snapshot": None,
                "resume": None,
                "plan": host_plan_of(job, address, node.paths.root),
            }
            asyncio.run(node.prepare(order))
            told = [one for one in workspace.store.events(job.id) if one.kind == "network"]
            assert len(told) == count, address


def host_plan_of(job: Job, address: str, root: Path) -> dict[str, Any]:
    """Return the plan of the first of two nodes."""
    places = tuple(Place(node, f"n{node}", address, root) for node in range(2))
    context = AttemptContext(
        job=job,
        attempt=1,
        places=places,
        markers=("m0", "m1"),
        workspace_name="ws",
        workspace_path="",
    )
    return launcher_for(job.spec).plans(context)[0]
