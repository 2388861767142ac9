"""Checks whether a Ray cluster answers at HOST:PORT, over plain TCP, without Ray or gRPC."""

from __future__ import annotations

import socket
import threading
import time

from rayjobs.core.errors import TargetError
from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass

LIMIT_S = 5.0
# The beginning of HTTP/2 (RFC 9113, 3.4) and an empty SETTINGS frame. A gRPC server answers with
# its own SETTINGS immediately. A connection alone proves little: the kernel accepts it even for a
# stopped process.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS = 4
_FRAME_HEADER_BYTES = 9


@dataclass(frozen=True)
class Reach:
    """Whether a Ray cluster answers at an address.

    Attributes:
        problem: Why no cluster can be reached; empty if one answers.
        is_late: There was no answer in time; there may be one later.
    """

    problem: str = ""
    is_late: bool = False


def why_unreachable(address: str, *, timeout_s: float = LIMIT_S) -> str:
    """Return why no Ray cluster can be reached at an address; empty if one answers."""
    return look(address, timeout_s=timeout_s).problem


def look(address: str, *, timeout_s: float = LIMIT_S) -> Reach:
    """Return whether a Ray cluster answers at an address.

    Args:
        address: `host:port` of the cluster's GCS.
        timeout_s: The time limit for the whole check, including name resolution.
    """
    found: list[Reach] = []

    def look_there() -> None:
        found.append(_look(address, time.monotonic() + timeout_s))

    # Name resolution has no timeout, hence a thread that may be left behind.
    looking = threading.Thread(target=look_there, name="reach", daemon=True)
    looking.start()
    looking.join(timeout_s + 0.1)
    late = Reach(f"no answer within {duration_text(timeout_s)}", is_late=True)
    return found[0] if found else late


def check_reachable(name: str, address: str, *, timeout_s: float = LIMIT_S) -> None:
    """Check that a Ray cluster answers at the address of target `name`.

    Raises:
        TargetError: it does not; the message names the address and the reason.
    """
    if reason := why_unreachable(address, timeout_s=timeout_s):
        raise UnreachedError(unreachable_text(name, address, reason), address=address)


class UnreachedError(TargetError):
    """No Ray cluster answers at a target's address.

    Attributes:
        address: `host:port` of the cluster's GCS.
    """

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message, address=address)
        self.address = address


def unreachable_text(name: str, address: str, reason: str) -> str:
    """Return the sentence that says that a target's cluster cannot be reached."""
    return (
        f"target {name!r}: no Ray cluster can be reached at {address}: {reason}. Check that the "
        f"cluster runs and that this machine reaches that address"
    )


def _look(address: str, deadline: float) -> Reach:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_left_s(deadline)) as connection:
            connection.settimeout(_left_s(deadline))
            connection.sendall(_HELLO)
            answer = b""
            while len(answer) < _FRAME_HEADER_BYTES:
                connection.settimeout(_left_s(deadline))
                part = connection.recv(4096)
                if not part:
                    return Reach(
                        "whatever listens there closed the connection; it is not Ray's GCS"
                    )
                answer += part
    except TimeoutError:
        return Reach("no answer in time", is_late=True)
    except (OSError, ValueError) as error:
        return Reach(str(getattr(error, "strerror", None) or error))
    if answer[3] != _SETTINGS:
        return Reach("something other than Ray's GCS listens there")
    return Reach()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
