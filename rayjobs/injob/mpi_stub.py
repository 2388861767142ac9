"""The program that mpirun and orted start instead of ranks and ssh: it calls the attempt host.

`python -S -E mpi_stub.py rank` represents one rank: the host forks the rank, and this process ends
like it. `python -S -E mpi_stub.py remote NODE COMMAND…` replaces ``ssh NODE COMMAND…``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

SOCKET_VARIABLE = "RAYJOBS_MPI_SOCKET"
PYTHON_VARIABLE = "RAYJOBS_MPI_PYTHON"
STUB_VARIABLE = "RAYJOBS_MPI_STUB"
# Variables of mpirun and orted for a rank: its identity, and its PMIx server's address.
MPI_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "ORTE_", "OPAL_")
_REFUSED = 1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


def ask(path: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Send one request to the host and wait for its answer, however long that takes.

    Raises:
        OSError: the host is not running, or ended before it answered.
        ValueError: the answer is not a JSON object.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(path)
        stream.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            part = stream.recv(65536)
            if not part:
                raise ConnectionResetError("the attempt host is gone")
            line += part
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("the attempt host gave an invalid answer")
    return answer


def be_rank(path: str) -> int:
    """Represent one rank; end like it, by the same signal if necessary."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(MPI_PREFIXES)}
    answer = ask(path, {"op": "rank", "env": variables})
    if answer.get("error"):
        print(f"rayjobs: {answer['error']}", file=sys.stderr)
        return _REFUSED
    if answer.get("signal") is not None:
        end_by(int(answer["signal"]))
    return int(answer.get("exit_code") or 0)


def end_by(number: int) -> None:
    """End this process by a signal, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def start_remotely(path: str, node: str, words: list[str]) -> int:
    """Run a command on another node of the job; return 0 once it was started there."""
    answer = ask(path, {"op": "remote", "node": node, "command": " ".join(words)})
    if answer.get("error"):
        print(f"rayjobs: {answer['error']}", file=sys.stderr)
        return _REFUSED
    return 0


def main(arguments: list[str]) -> int:
    """Run the program."""
    try:
        path = os.environ[SOCKET_VARIABLE]
        if arguments[:1] == ["remote"]:
            return start_remotely(path, arguments[1], arguments[2:])
        return be_rank(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        print(f"rayjobs: the attempt host cannot be reached: {error!r}", file=sys.stderr)
        return _REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
