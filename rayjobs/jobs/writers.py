"""The writer of an interactive run: a process or an attempt of a job. The run ends with it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rayjobs.injob.identity import OfProcess, boot_id, is_alive, own_identity
from rayjobs.injob.lazy_dataclass import dataclass

MACHINE_ID = "/etc/machine-id"


@dataclass(frozen=True, kw_only=True)
class ProcessWriter(OfProcess):
    """A process outside the queue, such as a notebook's kernel.

    Attributes:
        namespace: Its PID namespace, outside which its pid has no meaning.
        host: The name of its machine.
        machine: The id of its machine, which survives a restart; empty if it has none.
    """

    pid: int
    start_time: int
    boot_id: str
    namespace: str
    host: str
    machine: str = ""

    @classmethod
    def own(cls) -> ProcessWriter:
        """Return the calling process."""
        return cls(
            **own_identity().to_json(),
            namespace=_namespace(),
            host=socket.gethostname(),
            machine=_machine(),
        )

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended.

        On another machine or in another container, this is unknown.
        """
        if self.boot_id != boot_id():
            return self.is_of_earlier_boot
        if self.namespace != _namespace():
            return False
        return not is_alive(self.identity)

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether this machine is its machine and has restarted since."""
        if self.boot_id == boot_id() or self.host != socket.gethostname():
            return False
        # Machines may share a name: only a known and equal id proves that it is this one.
        return self.machine != "" and self.machine == _machine()

    def to_json(self) -> dict[str, Any]:
        """Return its stored form."""
        return {"kind": "process", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class AttemptWriter:
    """An attempt of a job whose script started the run."""

    job: str
    attempt: int

    def to_json(self) -> dict[str, Any]:
        """Return its stored form."""
        return {"kind": "attempt", **asdict(self)}


Writer = ProcessWriter | AttemptWriter


def writer_of(values: Mapping[str, Any]) -> Writer:
    """Return the writer that `to_json` wrote."""
    given = {key: value for key, value in values.items() if key != "kind"}
    return AttemptWriter(**given) if values["kind"] == "attempt" else ProcessWriter(**given)


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _machine() -> str:
    """Return the machine's id as in machine-id(5); empty if it has none, as in most containers."""
    try:
        with open(MACHINE_ID, encoding="ascii") as file:
            found = file.read().strip()
    except (OSError, ValueError):
        return ""
    return found if found != "uninitialized" else ""
