"""Stores a workspace's settings for Azure ML v1 programs: identity, computes and mappings.

Each value has its own key in the store, so that concurrent programs do not overwrite each other's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rayjobs.injob.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from rayjobs.store.base import Store

_IDENTITY = "identity"
_ALLOW_CPU = "allow-cpu"
_COMPUTE = "compute/"
_TARGET = "target/"
_URL = "url/"
_EXPERIMENT = "experiment/"


@dataclass(frozen=True)
class Identity:
    """The workspace's identity for programs, as in an Azure ``config.json``."""

    name: str
    subscription_id: str = "local"
    resource_group: str = "local"
    location: str = "local"


@dataclass(frozen=True)
class ComputeRecord:
    """A compute target that a program created; a separate mapping names the real target.

    Attributes:
        vm_size: Size of its machines in Azure.
        vm_priority: ``dedicated`` or ``lowpriority``.
        min_nodes, max_nodes: The limits on its nodes.
        idle_seconds: Idle seconds after which a node is released.
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
        """The stored identity; None if the workspace only has its own."""
        values = self._read(_IDENTITY)
        return None if values is None else Identity(**values)

    def keep_identity(self, identity: Identity) -> None:
        """Store the workspace's identity for programs, replacing an earlier one."""
        if self.identity != identity:
            self._write(_IDENTITY, asdict(identity))

    @property
    def allow_cpu(self) -> bool:
        """Whether GPU jobs may run on CPUs if a target has no GPU."""
        return self._read(_ALLOW_CPU) is True

    def set_allow_cpu(self, allowed: bool) -> None:
        """Allow or forbid GPU jobs on CPUs."""
        self._write(_ALLOW_CPU, True if allowed else None)

    # -- computes ------------------------------------------------------------------------------
    def computes(self) -> dict[str, ComputeRecord]:
        """Return the computes that programs created, by name."""
        return {
            name: ComputeRecord(**values) for name, values in self._read_under(_COMPUTE).items()
        }

    def compute(self, name: str) -> ComputeRecord | None:
        """Return a compute; None if there is none of that name."""
        values = self._read(_COMPUTE + name)
        return None if values is None else ComputeRecord(**values)

    def put_compute(self, record: ComputeRecord) -> None:
        """Store a compute, replacing one of the same name."""
        self._write(_COMPUTE + record.name, asdict(record))

    def remove_compute(self, name: str) -> None:
        """Remove a compute, if it exists."""
        self._write(_COMPUTE + name, None)

    # -- mappings ------------------------------------------------------------------------------
    def targets(self) -> dict[str, str]:
        """Return the target of each compute, by the compute's name."""
        return self._read_under(_TARGET)

    def map_target(self, compute: str, target: str | None) -> None:
        """Map a compute to a target; None removes the mapping."""
        self._write(_TARGET + compute, target)

    def urls(self) -> dict[str, str]:
        """Return the local path that replaces each URL prefix, by prefix."""
        return self._read_under(_URL)

    def map_url(self, url: str, path: str | None) -> None:
        """Map URLs that begin with `url` to a local path; None removes the mapping."""
        self._write(_URL + url, path)

    # -- experiments ---------------------------------------------------------------------------
    def experiment(self, name: str) -> dict[str, Any]:
        """Return the stored values of an experiment: ``tags``, ``archived_at``."""
        values: dict[str, Any] = self._read(_EXPERIMENT + name) or {}
        return values

    def experiments(self) -> dict[str, dict[str, Any]]:
        """Return the stored values of experiments, by name."""
        return self._read_under(_EXPERIMENT)

    def put_experiment(self, name: str, values: Mapping[str, Any]) -> None:
        """Store these values of an experiment."""
        self._write(_EXPERIMENT + name, dict(values) or None)

    def _read(self, key: str) -> Any:
        text = self._store.program_setting(key)
        return None if text is None else json.loads(text)

    def _read_under(self, prefix: str) -> dict[str, Any]:
        found = self._store.program_settings(prefix)
        return {key[len(prefix) :]: json.loads(text) for key, text in found.items()}

    def _write(self, key: str, value: Any) -> None:
        self._store.put_program_setting(key, None if value is None else json.dumps(value))
