"""The network interface that a node's ranks get."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rayjobs.injob.interfaces import interface_of, variables
from rayjobs.injob.plan import parse
from rayjobs.launch.network import unknown_interface
from tests.support.preparing import prepared
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
def test_address_of_another_machine_has_no_interface(address: str) -> None:
    assert interface_of(address) is None
    assert variables(address) == {}


def test_nodes_of_one_machine_have_loopback_addresses_that_it_does_not_list() -> None:
    assert interface_of("127.93.4.2") == "lo"


def test_ranks_get_the_interface_unless_the_job_sets_one() -> None:
    expected = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "HOROVOD_GLOO_IFACE": "lo"}
    plan = parse(values(address="127.0.0.1"))
    assert expected.items() <= plan.rank_env(plan.ranks[0], {}).items()
    chosen = {"GLOO_SOCKET_IFNAME": "eth7"}
    plan = parse(values(address="127.0.0.1", env=chosen))
    assert (expected | chosen).items() <= plan.rank_env(plan.ranks[0], {}).items()
    alone = parse(values())
    assert not expected.keys() & alone.rank_env(alone.ranks[0], {}).keys()


def test_address_without_an_interface_is_reported_for_multi_node_jobs() -> None:
    plan = parse(values(node=1, node_count=2, env={}, address=NOWHERE))
    assert f"node 1 has its address {NOWHERE}" in unknown_interface(plan)
    assert unknown_interface(replace(plan, node_count=1)) == ""
    assert unknown_interface(replace(plan, address=None)) == ""
    assert unknown_interface(replace(plan, address="127.0.0.1")) == ""
    assert unknown_interface(replace(plan, env={"NCCL_SOCKET_IFNAME": "ib0"})) == ""


@pytest.mark.long
@pytest.mark.parametrize(("address", "count"), [(NOWHERE, 1), ("127.0.0.1", 0)])
def test_history_reports_an_address_without_an_interface(
    tmp_path: Path, address: str, count: int
) -> None:
    events = [one for one in prepared(tmp_path, address=address) if one.kind == "network"]
    assert len(events) == count
