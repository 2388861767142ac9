"""Chooses the network interface for ranks: the one with their node's address.

By default gloo takes the interface that the host name resolves to, which may be the loopback
(Debian writes 127.0.1.1 into /etc/hosts) or another network; nccl takes the first one it finds.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import Dict, Iterator, Tuple

# "=" means exactly this name to nccl; without it, eth1 would also mean eth10.
VARIABLES = {
    "GLOO_SOCKET_IFNAME": "{}",
    "NCCL_SOCKET_IFNAME": "={}",
    "HOROVOD_GLOO_IFACE": "{}",
}
# Source: linux/sockios.h, and struct ifreq of linux/if.h, which is as long as a struct ifmap.
_SIOCGIFCONF = 0x8912
_NAME_BYTES = 16
_ENTRY_BYTES = _NAME_BYTES + struct.calcsize("LLHBBB0L")
_FIRST_ENTRIES = 64


def variables(address: str | None) -> Dict[str, str]:
    """Return the variables that name the interface with this node's address; empty without one."""
    name = None if address is None else interface_of(address)
    return {} if name is None else {key: form.format(name) for key, form in VARIABLES.items()}


def interface_of(address: str) -> str | None:
    """The name of the network interface that has an address; None if no interface has it."""
    if address.startswith("127."):
        return "lo"  # the loopback answers to all of 127/8, but lists one address
    if ":" in address:
        return _interface_of_ipv6(address)
    try:
        return next((name for name, one in _ipv4_addresses() if one == address), None)
    except OSError:
        return None  # a sandbox that hides them


def _ipv4_addresses() -> Iterator[Tuple[str, str]]:
    """Yield (interface, address) pairs; an interface may have several addresses."""
    entries = _FIRST_ENTRIES
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while True:
            found = array.array("B", bytes(entries * _ENTRY_BYTES))
            address, size = found.buffer_info()
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iP", size, address))
            length = struct.unpack("iP", answer)[0]
            if length < size:
                break
            entries *= 2  # there may be more
    for start in range(0, length, _ENTRY_BYTES):
        entry = found[start : start + _ENTRY_BYTES].tobytes()
        label = entry[:_NAME_BYTES].split(b"\0")[0].decode()
        # A further address may have a label of its own, "eth0:1".
        yield label.partition(":")[0], socket.inet_ntoa(entry[_NAME_BYTES + 4 : _NAME_BYTES + 8])


def _interface_of_ipv6(address: str) -> str | None:
    try:
        wanted = socket.inet_pton(socket.AF_INET6, address).hex()
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None  # no such address, or a kernel without IPv6
    return next((line[-1] for line in lines if line[0] == wanted), None)
