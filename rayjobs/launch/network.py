"""The warning for a node whose address belongs to none of its network interfaces."""

from __future__ import annotations

from rayjobs.injob.interfaces import VARIABLES, interface_of
from rayjobs.injob.plan import LaunchPlan


def unknown_interface(plan: LaunchPlan) -> str:
    """Return advice if this node's ranks may not reach the others; else nothing."""
    address = plan.address
    if address is None or plan.node_count < 2:
        return ""
    if any(name in plan.env for name in VARIABLES) or interface_of(address) is not None:
        return ""
    return (
        f"no network interface of node {plan.node} has its address {address}, so gloo and nccl "
        f"choose one themselves. If its ranks do not reach the others, start Ray there with the "
        f"--node-ip-address of the right interface, or submit with --env-var "
        f"GLOO_SOCKET_IFNAME=NAME (NCCL_SOCKET_IFNAME for nccl)"
    )
