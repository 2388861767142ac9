"""The definition of a compute target: the local head or an attached Ray cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.files import read_json, write_private
from rayjobs.core.paths import TargetPaths
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.policy.node_types import NodeTypes
from rayjobs.target.local_head import LOCAL

# The default and the minimum: Ray itself keeps a node that has lost its head for 60 s, and a host
# ends its ranks after two thirds of its lease.
LEASE_S = 90.0
# A cloud machine takes minutes to start, and longer with GPUs and a large image.
START_TIMEOUT_S = 1200.0

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class TargetRecord:
    """A target's definition (`target.json`).

    Attributes:
        name: Lower case letters, digits and dashes.
        address: `host:port` of the cluster's GCS; None for the local head.
        token_file: File that holds the attached cluster's token; None for the local head.
        lease_s: Seconds after which an unreachable node has ended its jobs' processes itself; None
            for the local head, whose processes can be inspected.
        node_types: The node types that the cluster may start; None: none, or unknown.
        start_timeout_s: How many seconds a job waits for nodes to start before it tries again.
        without_token: The cluster requires no token, and its user has accepted that.
    """

    name: str
    address: str | None = None
    token_file: str | None = None
    lease_s: float | None = None
    node_types: NodeTypes | None = None
    start_timeout_s: float = START_TIMEOUT_S
    without_token: bool = False

    @property
    def is_local(self) -> bool:
        """Whether rayjobs itself starts and stops its Ray head."""
        return self.address is None


def check_name(name: str) -> str:
    """Return `name` if it is a valid target name.

    Raises:
        UsageError: it is not.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a target cannot be called {name!r}: use 1 to 31 lower case letters, digits and "
            f"dashes, starting with a letter or digit.",
            name=name,
        )
    return name


def load_target(name: str, *, home: Path) -> TargetRecord:
    """Return the definition of a target; `local` always exists.

    Raises:
        NotFoundError: no such target.
    """
    if name == LOCAL:
        return TargetRecord(LOCAL)
    values = None
    if _NAME.fullmatch(name):
        values = read_json(TargetPaths.of(name, under=home).record)
    if values is None:
        known = ", ".join(record.name for record in all_targets(home=home))
        raise NotFoundError(
            f"there is no target {name!r}; known targets: {known}. Make one with "
            f"`rayjobs target create {name} --address HOST:PORT --token-file FILE`.",
            name=name,
        )
    address, token_file = values.get("address"), values.get("token_file")
    return TargetRecord(
        name,
        address=None if address is None else str(address),
        token_file=None if token_file is None else str(token_file),
        lease_s=float(values.get("lease_s") or LEASE_S),
        node_types=NodeTypes.from_dict(types) if (types := values.get("node_types")) else None,
        start_timeout_s=float(values.get("start_timeout_s") or START_TIMEOUT_S),
        without_token=bool(values.get("without_token", False)),
    )


def save_target(record: TargetRecord, *, home: Path) -> None:
    """Write a target's definition."""
    values = {
        "version": 1,
        "name": record.name,
        "address": record.address,
        "token_file": record.token_file,
        "lease_s": record.lease_s,
        "node_types": None if record.node_types is None else record.node_types.to_dict(),
        "start_timeout_s": record.start_timeout_s,
        "without_token": record.without_token,
    }
    write_private(TargetPaths.of(record.name, under=home).record, json.dumps(values) + "\n")


def all_targets(*, home: Path) -> Iterator[TargetRecord]:
    """Yield `local` and then every attached target by name."""
    yield TargetRecord(LOCAL)
    for path in sorted((home / "targets").glob("*/target.json")):
        if path.parent.name != LOCAL:
            try:
                yield load_target(path.parent.name, home=home)
            except NotFoundError:
                continue  # removed meanwhile, or incomplete
