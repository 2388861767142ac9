"""Messages of warm interpreters: requests on their socket, and the answer to "ping"."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Dict, Mapping, Optional, Tuple

from rayjobs.injob.answers import Answer
from rayjobs.injob.identity import Identity, OfProcess
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class WarmStatus(OfProcess, Answer):
    """A warm interpreter's answer to "ping": its process and its imports.

    Attributes:
        preloaded: Modules that it has imported.
        not_preloaded: Why the others could not be imported.
        import_s: Seconds that the imports took.
        threads: Number of its threads.
    """

    pid: int = 0
    start_time: int = 0
    boot_id: str = ""
    preloaded: Tuple[str, ...] = ()
    not_preloaded: Mapping[str, str] = field(default_factory=dict)
    import_s: float = 0.0
    threads: int = 0


@dataclass(frozen=True)
class WarmRequest(Message):
    """A request to a warm interpreter; each operation reads its own fields.

    Attributes:
        op: "ping", "fork" or "stop".
        plan: Path of the launch plan of a fork.
        secrets: Variables of a fork that are never written to a file.
        is_user: A ping comes from an agent that uses the interpreter.
        raylet: Ray's process on that agent's node. The interpreter ends soon after the last such
            process. None: it stays until it is idle or stopped.
    """

    op: str
    plan: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    is_user: bool = False
    raylet: Optional[Identity] = None

    @classmethod
    def upgraded(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` of version 0.1.0, which named a raylet only in pings of users."""
        return {"is_user": "raylet" in values, **values}

    def to_json(self) -> Dict[str, Any]:
        """Return its JSON, in which an interpreter of version 0.1.0 knows a user by the raylet."""
        values = super().to_json()
        if not self.is_user:
            del values["raylet"]
        return values
