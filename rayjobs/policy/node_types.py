"""The node types of an autoscaled cluster, from its `cluster.yaml`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.numbers import is_number, is_whole
from rayjobs.core.text import counted
from rayjobs.injob.lazy_dataclass import dataclass

# The label with Ray's node type, also for nodes that have not started.
TYPE_LABEL = "ray.io/node-group"


@dataclass(frozen=True)
class NodeType:
    """One type of worker node.

    Attributes:
        name: Its key in `available_node_types`.
        cpus: Logical CPUs of a node.
        gpus: GPUs of a node.
        memory_bytes: Memory for jobs in Ray; 0 if the file does not specify it.
        min_nodes: How many always run.
        max_nodes: How many may run at a time.
        vm_size: Size of the machine, such as ``Standard_NC24ads_A100_v4``; empty: not specified.
        is_spot: Whether the provider may evict such a node.
    """

    name: str
    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    vm_size: str = ""
    is_spot: bool = False

    def describe(self) -> str:
        """Return e.g. ``gpu (Standard_NC24ads_A100_v4, 24 CPUs, 1 GPU, spot, at most 4)``."""
        parts = [self.vm_size] if self.vm_size else []
        parts.append(counted(self.cpus, "CPU"))
        if self.gpus:
            parts.append(counted(self.gpus, "GPU"))
        parts += ["spot"] * self.is_spot
        return f"{self.name} ({', '.join([*parts, f'at most {self.max_nodes}'])})"


@dataclass(frozen=True)
class NodeTypes:
    """The node types that a cluster may start.

    Attributes:
        types: Its types of worker nodes.
        max_nodes: How many workers of all types may run at a time.
    """

    types: tuple[NodeType, ...] = ()
    max_nodes: int = 0

    def named(self, name: str) -> NodeType | None:
        """Return the type with this name, or None."""
        return next((one for one in self.types if one.name == name), None)

    def matching(self, wanted: Collection[str], spot: bool | None) -> tuple[NodeType, ...]:
        """Return the types with one of the names or machine sizes.

        Args:
            wanted: Names or sizes; sizes in any case. Empty: all types.
            spot: Only spot types (True), only others (False), or both (None).
        """
        sizes = {one.casefold() for one in wanted}
        return tuple(
            one
            for one in self.types
            if (not wanted or one.name in wanted or one.vm_size.casefold() in sizes)
            and (spot is None or one.is_spot == spot)
        )

    def describe(self) -> str:
        """Return the list of types for users."""
        return "; ".join(one.describe() for one in self.types) or "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the types as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NodeTypes:
        """Return the types written by `to_dict`."""
        return cls(
            types=tuple(NodeType(**one) for one in data.get("types", ())),
            max_nodes=int(data.get("max_nodes", 0)),
        )


def read_cluster_file(path: Path) -> NodeTypes:
    """Return the worker types of a file for Ray's cluster launcher (`ray up`).

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read, or lacks what the placement of jobs needs.
    """
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no cluster file {path}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read as a cluster file: {error}.") from error
    types = loaded.get("available_node_types") if isinstance(loaded, dict) else None
    if not isinstance(types, dict):
        raise UsageError(
            f"{path} has no available_node_types; give the configuration file of `ray up`."
        )
    head = loaded.get("head_node_type")
    # Ray's own default.
    most = _count(path, "max_workers", loaded.get("max_workers", 2))
    found = [_node_type(path, name, one, most) for name, one in types.items() if name != head]
    return NodeTypes(tuple(one for one in found if one.max_nodes > 0), most)


def _node_type(path: Path, name: str, given: Any, most: int) -> NodeType:
    where = f"available_node_types.{name}"
    if not isinstance(given, dict) or not isinstance(given.get("resources"), dict):
        raise UsageError(f"{path}: {where} has no resources.")
    resources = given["resources"]
    if "CPU" not in resources:
        raise UsageError(
            f"{path}: {where}.resources has no CPU entry, so it is unknown whether a job fits; "
            f"write e.g. resources: {{CPU: 8, GPU: 1}}."
        )
    labels = given.get("labels") or {}
    if labels.get(TYPE_LABEL) != name:
        raise UsageError(
            f"{path}: {where} needs the label that tells Ray the type of nodes before they "
            f"start; add labels: {{{TYPE_LABEL}: {name}}}."
        )
    parameters = (given.get("node_config") or {}).get("azure_arm_parameters") or {}
    config = given.get("node_config") or {}
    market = (config.get("InstanceMarketOptions") or {}).get("MarketType", "")
    return NodeType(
        name=name,
        cpus=_amount(path, f"{where}.resources.CPU", resources["CPU"]),
        gpus=_amount(path, f"{where}.resources.GPU", resources.get("GPU", 0)),
        memory_bytes=int(_amount(path, f"{where}.resources.memory", resources.get("memory", 0))),
        min_nodes=_count(path, f"{where}.min_workers", given.get("min_workers", 0)),
        max_nodes=min(most, _count(path, f"{where}.max_workers", given.get("max_workers", most))),
        vm_size=str(parameters.get("vmSize") or config.get("InstanceType") or ""),
        is_spot=str(parameters.get("priority") or market).casefold() in ("spot", "low"),
    )


def _amount(path: Path, name: str, value: Any) -> float:
    if not is_number(value) or value < 0:
        raise UsageError(f"{path}: {name} is {value!r}; it must be a number, 0 or more.")
    return float(value)


def _count(path: Path, name: str, value: Any) -> int:
    if not is_whole(value, at_least=0):
        raise UsageError(f"{path}: {name} is {value!r}; it must be a whole number, 0 or more.")
    return value


def how_many_more(types: NodeTypes, living: Sequence[str]) -> list[tuple[NodeType, int]]:
    """Return for each type how many nodes of it may still start.

    Args:
        living: The type of each living node.
    """
    return [(one, max(0, one.max_nodes - living.count(one.name))) for one in types.types]
