"""What a workspace keeps for programs of Azure ML v1: its identity there, computes and mappings.

All of it is in the store, one value per key, so that programs that run at once do not overwrite
each other's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayjobs.store.base import Store

_PREFIX = "azure/"
_IDENTITY = f"{_PREFIX}identity"
_ALLOW_CPU = f"{_PREFIX}allow-cpu"
_COMPUTE = f"{_PREFIX}compute/"
_TARGET = f"{_PREFIX}target/"
_URL = f"{_PREFIX}url/"
_EXPERIMENT = f"{_PREFIX}experiment/"


@dataclass(frozen=True)
class Identity:
    """How programs name the workspace: what an Azure ``config.json`` says."""

    name: str
    subscription_id: str = "local"
    resource_group: str = "local"
    location: str = "local"


@dataclass(frozen=True)
class ComputeRecord:
    """A compute target as a program made it; which real target runs its jobs is decided apart.

    Attributes:
        vm_size: Size of its machines in Azure.
        vm_priority: ``dedicated`` or ``lowpriority``.
        min_nodes, max_nodes: How many nodes it may have.
        idle_seconds: After how many idle seconds a node is given back.
        created_at, modified_at: ISO 8601, UTC.
    """

    name: str
    vm_size: str = ""
    vm_priority: str = "dedicated"
    min_nodes: int = 0
    max_nodes: int = 4
    idle_seconds: int = 1800
    tags: Mapping[str, str] | None = None
    description: str = ""
    created_at: str = ""
    modified_at: str = ""


class AzureSettings:
    """Reads and writes these values in a workspace's store.

    Raises:
        StoreError: the store cannot be read or written (all methods).
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def identity(self) -> Identity | None:
        """The identity that was kept; None: it has none but its own."""
        values = self._read(_IDENTITY)
        return None if values is None else Identity(**values)

    def keep_identity(self, identity: Identity) -> None:
        """Keep how programs name the workspace; a later one replaces it."""
        if self.identity != identity:
            self._write(_IDENTITY, asdict(identity))

    @property
    def allow_cpu(self) -> bool:
        """Whether jobs that ask for GPUs may run on CPUs where a target has no GPU."""
        return self._read(_ALLOW_CPU) is True

    def set_allow_cpu(self, allowed: bool) -> None:
        """Allow that, or take it back."""
        self._write(_ALLOW_CPU, True if allowed else None)

    # -- computes ------------------------------------------------------------------------------
    def computes(self) -> dict[str, ComputeRecord]:
        """Return the computes that programs made, by name."""
        return {
            name: ComputeRecord(**values) for name, values in self._read_under(_COMPUTE).items()
        }

    def compute(self, name: str) -> ComputeRecord | None:
        """Return a compute; None: no program made one of that name."""
        values = self._read(_COMPUTE + name)
        return None if values is None else ComputeRecord(**values)

    def put_compute(self, record: ComputeRecord) -> None:
        """Keep a compute, in place of one of the same name."""
        self._write(_COMPUTE + record.name, asdict(record))

    def remove_compute(self, name: str) -> None:
        """Forget a compute, if there is one."""
        self._write(_COMPUTE + name, None)

    # -- mappings ------------------------------------------------------------------------------
    def targets(self) -> dict[str, str]:
        """Return which target runs the jobs of a compute, by the compute's name."""
        return self._read_under(_TARGET)

    def map_target(self, compute: str, target: str | None) -> None:
        """Let a target run a compute's jobs; None takes that back."""
        self._write(_TARGET + compute, target)

    def urls(self) -> dict[str, str]:
        """Return which local path answers for a URL, by the URL (or its beginning)."""
        return self._read_under(_URL)

    def map_url(self, url: str, path: str | None) -> None:
        """Let a local path answer for URLs that begin with `url`; None takes that back."""
        self._write(_URL + url, path)

    # -- experiments ---------------------------------------------------------------------------
    def experiment(self, name: str) -> dict[str, Any]:
        """Return what is kept of an experiment: ``tags``, ``archived_at``."""
        values: dict[str, Any] = self._read(_EXPERIMENT + name) or {}
        return values

    def experiments(self) -> dict[str, dict[str, Any]]:
        """Return what is kept of experiments, by name."""
        return self._read_under(_EXPERIMENT)

    def put_experiment(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep these values of an experiment."""
        self._write(_EXPERIMENT + name, dict(values) or None)

    def _read(self, key: str) -> Any:
        text = self._store.meta(key)
        return None if text is None else json.loads(text)

    def _read_under(self, prefix: str) -> dict[str, Any]:
        found = self._store.meta_under(prefix)
        return {key[len(prefix) :]: json.loads(text) for key, text in found.items()}

    def _write(self, key: str, value: Any) -> None:
        self._store.set_meta(key, None if value is None else json.dumps(value))
