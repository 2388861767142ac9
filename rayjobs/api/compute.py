"""Compute targets in Azure ML v1's terms, bound to the targets that run their jobs.

A compute is a record in the workspace: a name, a machine size, node counts. Each submit looks up
which target runs its jobs: a target of that name, else the workspace's mapping (`rayjobs azureml
map cpu-cluster=TARGET`), else ``local``.

Source: ``azureml.core.compute`` of azureml-core 1.61.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rayjobs.api import program_rules
from rayjobs.api.notices import notice
from rayjobs.api.vm_sizes import VmSize, vm_size
from rayjobs.core.clock import SystemClock, to_text
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.core.numbers import is_whole
from rayjobs.core.paths import home as default_home
from rayjobs.core.refusing import refuses
from rayjobs.core.text import verb
from rayjobs.injob.azureml.exceptions import ComputeTargetException
from rayjobs.target.local_head import LOCAL
from rayjobs.target.record import all_targets
from rayjobs.target.targets import known_names
from rayjobs.workspace.azure import AzureSettings, ComputeRecord

if TYPE_CHECKING:
    from rayjobs.api.workspace import Workspace
    from rayjobs.target.answers import NodeStatus

PRIORITIES = ("dedicated", "lowpriority")
DEFAULT_SIZE = "STANDARD_NC6"  # the size of an AmlCompute for which the program names none
DEFAULT_MAX_NODES = 4
_KIND = re.compile(r"cpu|gpu|[-_]?\d+")
MISSPELT = 0.8  # names at least this similar are taken for typing mistakes


class ComputeNotFoundError(NotFoundError, ComputeTargetException):
    """The workspace has no such compute target."""


class ComputeUsageError(UsageError, ComputeTargetException):
    """A compute target cannot be created or changed in this way."""


class ComputeTarget:
    """A compute target of a workspace: ``ComputeTarget(workspace, name)`` finds it."""

    type = "AmlCompute"

    def __new__(cls, workspace: Any = None, name: str = "") -> ComputeTarget:
        """Make an `AmlCompute`, the only kind of compute target."""
        return object.__new__(AmlCompute if cls is ComputeTarget else cls)

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Find a compute target.

        Raises:
            ComputeNotFoundError: the workspace has no compute target of that name.
        """
        settings = AzureSettings(workspace.store)
        record = settings.compute(name)
        if record is None and name not in settings.targets() and not _is_target(name):
            raise ComputeNotFoundError(
                f"the workspace {workspace.name!r} has no compute target {name!r}; make it with "
                f"ComputeTarget.create(), or map it: `rayjobs azureml map {name}=local`"
            )
        self.workspace = workspace
        self.name = name
        self._record = record or ComputeRecord(name)
        self._is_made = record is not None

    @staticmethod
    def create(workspace: Workspace, name: str, provisioning_configuration: Any) -> AmlCompute:
        """Create a compute target, and print which target runs its jobs.

        As in Azure, the configuration replaces that of an existing compute target of this name,
        which keeps its creation time.

        Raises:
            ComputeUsageError: the name or the configuration is wrong.
        """
        if not isinstance(provisioning_configuration, AmlComputeProvisioningConfiguration):
            kind = type(provisioning_configuration).__name__
            raise ComputeUsageError(
                f"provisioning_configuration is a {kind}; give "
                f"AmlCompute.provisioning_configuration(...)"
            )
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise ComputeUsageError(f"a compute target cannot be called {name!r}")
        given = provisioning_configuration
        now = to_text(SystemClock().now())
        settings = AzureSettings(workspace.store)
        existing = settings.compute(name)
        settings.put_compute(
            ComputeRecord(
                name,
                vm_size=given.vm_size,
                vm_priority=given.vm_priority,
                min_nodes=given.min_nodes,
                max_nodes=given.max_nodes,
                idle_seconds=given.idle_seconds_before_scaledown,
                tags=given.tags,
                description=given.description,
                created_at=existing.created_at if existing is not None else now,
                modified_at=now,
            )
        )
        made = AmlCompute(workspace, name)
        notice(made.describe())
        return made

    @staticmethod
    def list(workspace: Workspace) -> list[ComputeTarget]:
        """Return all compute targets of a workspace, by name."""
        return [*compute_targets(workspace).values()]

    @staticmethod
    def attach(workspace: Workspace, name: str, attach_configuration: Any) -> ComputeTarget:
        """Refuse: use the command line to attach a cluster.

        Raises:
            ComputeUsageError: always.
        """
        raise ComputeUsageError(
            f"a program cannot attach the compute target {name!r}; attach its Ray cluster with "
            f"`rayjobs target create {name} --address HOST:PORT --token-file FILE`"
        )

    def __repr__(self) -> str:
        """Return name, size and target."""
        return f"AmlCompute(name={self.name!r}, vm_size={self.vm_size!r}, target={self.target!r})"

    # -- facts ---------------------------------------------------------------------------------
    @property
    def id(self) -> str:
        """The workspace's id and the name."""
        return f"{self.workspace.id}/{self.name}"

    @property
    def target(self) -> str:
        """Name of the target that currently runs its jobs."""
        return bound_target(AzureSettings(self.workspace.store), self.name) or LOCAL

    @property
    def provisioning_state(self) -> str:
        """``Succeeded``: a compute exists as soon as it is created."""
        return "Succeeded"

    @property
    def provisioning_errors(self) -> None:
        """Always None."""
        return

    @property
    def location(self) -> str:
        """The workspace's location."""
        return self.workspace.location

    @property
    def vm_size(self) -> str:
        """Size of its machines; empty if no program has set it."""
        return self._record.vm_size

    @property
    def vm_priority(self) -> str:
        """``dedicated`` or ``lowpriority``."""
        return self._record.vm_priority

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self._record.tags or {})

    @property
    def description(self) -> str:
        """The program's description."""
        return self._record.description

    @property
    def scale_settings(self) -> ScaleSettings:
        """The minimum and maximum number of its nodes."""
        record = self._record
        return ScaleSettings(record.min_nodes, record.max_nodes, record.idle_seconds)

    def describe(self) -> str:
        """Return one sentence on the requested machines and the target that runs its jobs."""
        record = self._record
        size = f"{record.vm_size}, " if record.vm_size else ""
        requested = f"{size}{record.min_nodes} to {record.max_nodes} nodes"
        target = self.target
        text = f"compute target {self.name!r} ({requested}) runs its jobs on target {target!r}"
        if target == LOCAL:
            return f"{text}, this machine; `rayjobs azureml map {self.name}=TARGET` changes that"
        return f"{text}, which has its own limits on nodes"

    # -- state ---------------------------------------------------------------------------------
    def refresh_state(self) -> None:
        """Read the record again."""
        self._record = AzureSettings(self.workspace.store).compute(self.name) or ComputeRecord(
            self.name
        )

    def get(self) -> dict[str, Any]:
        """Return everything as plain data, see `serialize`."""
        return self.serialize()

    def get_status(self) -> AmlComputeStatus:
        """Return the number of nodes that its target has, and the requested numbers."""
        self.refresh_state()
        return AmlComputeStatus(self._record, nodes=len(_nodes_of(self.target)))

    def serialize(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "id": self.id,
            "name": self.name,
            "location": self.location,
            "tags": self.tags,
            "type": self.type,
            "provisioningState": self.provisioning_state,
            "provisioningErrors": None,
            "target": self.target,
            "properties": self.get_status().serialize(),
        }

    def wait_for_completion(
        self,
        show_output: bool = False,
        min_node_count: int | None = None,
        timeout_in_minutes: float = 25,
        is_delete_operation: bool = False,
    ) -> None:
        """Return at once: a compute is ready when created; its target starts with the first job.

        Args:
            show_output: Print the state.
            min_node_count: Accepted but unused: a target starts nodes when jobs need them.
        """
        if show_output:
            state = "Deleted" if is_delete_operation else self.provisioning_state
            print(f"{state}\n{self.describe()}", flush=True)  # noqa: T201 - show_output

    # -- changes -------------------------------------------------------------------------------
    def update(
        self,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int | None = None,
    ) -> None:
        """Change the limits on its nodes, and how long a node may be idle.

        Raises:
            ComputeUsageError: a count is wrong, or the compute is a target that no program created.
        """
        self._check_made("updated")
        changes = {
            "min_nodes": min_nodes,
            "max_nodes": max_nodes,
            "idle_seconds": idle_seconds_before_scaledown,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        record = replace(
            self._record,
            **given,  # type: ignore[arg-type]  # checked next
            modified_at=to_text(SystemClock().now()),
        )
        _check_counts(record.min_nodes, record.max_nodes, record.idle_seconds)
        AzureSettings(self.workspace.store).put_compute(record)
        self._record = record

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Add tags, or change their values.

        Raises:
            ComputeUsageError: the compute is a target that no program created.
        """
        self._check_made("tagged")
        self._record = replace(self._record, tags={**self.tags, **tags})
        AzureSettings(self.workspace.store).put_compute(self._record)

    def delete(self) -> None:
        """Delete the record of the compute; the target that ran its jobs does not change.

        Raises:
            ComputeUsageError: the compute is a target that no program created.
        """
        self._check_made("deleted")
        AzureSettings(self.workspace.store).remove_compute(self.name)

    def detach(self) -> None:
        """Refuse: an attached compute is a target.

        Raises:
            ComputeUsageError: always.
        """
        raise ComputeUsageError(
            f"a program cannot detach {self.name!r}; use `rayjobs target rm {self.name}`"
        )

    def _check_made(self, what: str) -> None:
        if not self._is_made:
            raise ComputeUsageError(
                f"{self.name!r} cannot be {what}: it is the target {self.target!r}, which no "
                f"program created; see `rayjobs target -h`"
            )


@refuses("azure", "add_identity", "list_quotas", "list_usages", "remove_identity", "update_quotas")
class AmlCompute(ComputeTarget):
    """A cluster of machines of one size."""

    @staticmethod
    def provisioning_configuration(  # noqa: PLR0913 - Azure ML's parameters
        vm_size: str = "",
        vm_priority: str = "dedicated",
        min_nodes: int = 0,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int = 1800,
        admin_username: str | None = None,
        admin_user_password: str | None = None,
        admin_user_ssh_key: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        remote_login_port_public_access: str = "NotSpecified",
        identity_type: str | None = None,
        identity_id: Any = None,
        location: str | None = None,
        enable_node_public_ip: bool = True,
    ) -> AmlComputeProvisioningConfiguration:
        """Return the configuration of a new compute.

        The settings for network, identity, administrator and location only matter in Azure: they
        are accepted, and a notice says that they have no effect.

        Raises:
            ComputeUsageError: a count or the priority is wrong.
        """
        _notice_unused(
            admin_username=admin_username,
            admin_user_password=admin_user_password,
            admin_user_ssh_key=admin_user_ssh_key,
            vnet_resourcegroup_name=vnet_resourcegroup_name,
            vnet_name=vnet_name,
            subnet_name=subnet_name,
            identity_type=identity_type,
            identity_id=identity_id,
            location=location,
            remote_login_port_public_access=(
                None
                if remote_login_port_public_access == "NotSpecified"
                else remote_login_port_public_access
            ),
            enable_node_public_ip=None if enable_node_public_ip else False,
        )
        return AmlComputeProvisioningConfiguration(
            vm_size=vm_size,
            vm_priority=vm_priority,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            idle_seconds_before_scaledown=idle_seconds_before_scaledown,
            tags=tags,
            description=description or "",
        )

    @staticmethod
    def supported_vmsizes(
        workspace: Workspace, location: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the machine sizes of all targets' node types and of the workspace's computes."""
        named = [record.vm_size for record in AzureSettings(workspace.store).computes().values()]
        for target in all_targets(home=default_home()):
            if target.node_types is not None:
                named += [one.vm_size for one in target.node_types.types]
        sizes = [vm_size(name) for name in sorted({name for name in named if name})]
        return [
            {"name": one.name, "vCPUs": one.cpus, "gpus": one.gpus}
            for one in sizes
            if one is not None
        ]

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that its target currently has."""
        return [
            {"nodeId": f"{self.target}-{number}", "nodeState": "idle", "cpus": node.cpus}
            for number, node in enumerate(_nodes_of(self.target))
        ]

    def get_active_runs(
        self,
        type: str | None = None,
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
    ) -> Iterator[Any]:
        """Yield the workspace's unfinished runs on its target, newest first.

        Args:
            type: See `Experiment.get_runs`, also for `tags` and `properties`.
            status: ``Running`` or ``Queued``; None means both.

        Raises:
            UsageError: `status` is not one of these.
        """
        from rayjobs.api.run import JobRun

        return JobRun.list_by_compute(self, type, tags, properties, status)


class AmlComputeProvisioningConfiguration:
    """The configuration of a compute, see `AmlCompute.provisioning_configuration`."""

    def __init__(
        self,
        *,
        vm_size: str,
        vm_priority: str,
        min_nodes: int,
        max_nodes: int | None,
        idle_seconds_before_scaledown: int,
        tags: Mapping[str, str] | None,
        description: str,
    ) -> None:
        self.vm_size = vm_size or DEFAULT_SIZE
        self.vm_priority = str(vm_priority).casefold()
        self.min_nodes = min_nodes
        self.max_nodes = DEFAULT_MAX_NODES if max_nodes is None else max_nodes
        self.idle_seconds_before_scaledown = idle_seconds_before_scaledown
        self.tags = dict(tags or {})
        self.description = description
        if self.vm_priority not in PRIORITIES:
            raise ComputeUsageError(
                f"vm_priority is {vm_priority!r}; give 'dedicated' or 'lowpriority'"
            )
        _check_counts(self.min_nodes, self.max_nodes, self.idle_seconds_before_scaledown)


class ScaleSettings:
    """The limits on a compute's nodes."""

    def __init__(
        self,
        minimum_node_count: int,
        maximum_node_count: int,
        idle_seconds_before_scaledown: int,
    ) -> None:
        self.minimum_node_count = minimum_node_count
        self.maximum_node_count = maximum_node_count
        self.idle_seconds_before_scaledown = idle_seconds_before_scaledown

    def serialize(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {
            "minNodeCount": self.minimum_node_count,
            "maxNodeCount": self.maximum_node_count,
            "nodeIdleTimeBeforeScaleDown": f"PT{self.idle_seconds_before_scaledown}S",
        }


class AmlComputeStatus:
    """The current status of a compute."""

    def __init__(self, record: ComputeRecord, *, nodes: int) -> None:
        self.vm_size = record.vm_size
        self.vm_priority = record.vm_priority
        self.current_node_count = nodes
        self.target_node_count = nodes
        self.allocation_state = "Steady"
        self.provisioning_state = "Succeeded"
        self.errors = None
        self.creation_time = record.created_at
        self.modified_time = record.modified_at
        self.scale_settings = ScaleSettings(record.min_nodes, record.max_nodes, record.idle_seconds)

    def serialize(self) -> dict[str, Any]:
        """Return the status as plain data, with Azure's keys."""
        states = ("preparing", "running", "idle", "unusable", "leaving", "preempted")
        counts = {f"{state}NodeCount": 0 for state in states}
        counts["idleNodeCount"] = self.current_node_count
        return {
            "currentNodeCount": self.current_node_count,
            "targetNodeCount": self.target_node_count,
            "nodeStateCounts": counts,
            "allocationState": self.allocation_state,
            "allocationStateTransitionTime": self.modified_time,
            "errors": self.errors,
            "creationTime": self.creation_time,
            "modifiedTime": self.modified_time,
            "provisioningState": self.provisioning_state,
            "provisioningStateTransitionTime": None,
            "scaleSettings": self.scale_settings.serialize(),
            "vmPriority": self.vm_priority.capitalize(),
            "vmSize": self.vm_size,
        }


class ComputeTargets(dict[str, ComputeTarget]):
    """The compute targets of a workspace by name; an Azure ML program may use any name."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        settings = AzureSettings(workspace.store)
        names = {*known_names()}
        names |= {*settings.computes(), *settings.targets()}
        super().__init__({name: AmlCompute(workspace, name) for name in sorted(names)})

    def __missing__(self, name: str) -> ComputeTarget:
        """Return a compute that runs on ``local``, and print a notice.

        Raises:
            KeyError: the name is unknown, and this process does not run an Azure ML program.
            ComputeUsageError: the name is close to a known one.
        """
        if not program_rules.rules.unknown_is_local:
            raise KeyError(name)
        refuse_misspelt(AzureSettings(self._workspace.store), name)
        notice(unknown_sentence(name))
        made = AmlCompute.__new__(AmlCompute)
        made.workspace, made.name = self._workspace, name
        made._record, made._is_made = ComputeRecord(name), False
        return made


def compute_targets(workspace: Workspace) -> ComputeTargets:
    """Return the workspace's compute targets: those that programs made, and all targets."""
    return ComputeTargets(workspace)


def bound_target(settings: AzureSettings, name: str) -> str | None:
    """Return the target that runs a compute's jobs; None if it is not configured."""
    if _is_target(name):
        return name
    return settings.targets().get(name)


def refuse_misspelt(settings: AzureSettings, name: str) -> None:
    """Refuse an unknown compute name that is close to a known one.

    It is more likely a typing mistake than another cluster, and a job that silently runs on the
    wrong machine costs more than a refusal. Names that differ in ``cpu`` and ``gpu``, or in a
    number, belong to different clusters.

    Raises:
        ComputeUsageError: the name is close to a known one.
    """
    known = {*known_names()}
    known |= {*settings.computes(), *settings.targets()}
    others = sorted(one for one in known if _KIND.sub("", one) != _KIND.sub("", name))
    near = difflib.get_close_matches(name, others, n=1, cutoff=MISSPELT)
    if near:
        raise ComputeUsageError(
            f"there is no compute target {name!r}. Did you mean {near[0]!r}? If {name!r} is "
            f"another cluster, map it to a target: `rayjobs azureml map {name}=local`"
        )


def unknown_sentence(name: str) -> str:
    """Return the notice for an unmapped compute whose jobs run on this machine."""
    return (
        f"compute target {name!r} is not known here and runs its jobs on target 'local', this "
        f"machine; `rayjobs azureml map {name}=TARGET` changes that"
    )


def size_of(record: ComputeRecord) -> VmSize | None:
    """Return the machine of a compute; None if it has no size or an unknown one.

    An unknown size is reported once.
    """
    if not record.vm_size:
        return None
    found = vm_size(record.vm_size)
    if found is None:
        notice(
            f"the machine size {record.vm_size!r} of compute target {record.name!r} is not known "
            f"here: each process gets 1 CPU, and the GPUs that its target has"
        )
    return found


def _is_target(name: str) -> bool:
    return name in known_names()


def _nodes_of(target: str) -> Sequence[NodeStatus]:
    """Return the living nodes on which a target runs jobs; its limits count others that may start.

    None of them is a head without CPUs and GPUs, which runs no jobs.
    """
    from rayjobs.target.targets import target_status

    view = target_status(target)
    if view.state != "running":
        return ()
    return [node for node in view.nodes if node.cpus + node.gpus > 0]


def _check_counts(min_nodes: Any, max_nodes: Any, idle_seconds: Any) -> None:
    for name, value in (
        ("min_nodes", min_nodes),
        ("max_nodes", max_nodes),
        ("idle_seconds_before_scaledown", idle_seconds),
    ):
        if not is_whole(value, at_least=0):
            raise ComputeUsageError(f"{name} is {value!r}; it must be a whole number, 0 or more")
    if min_nodes > max_nodes:
        raise ComputeUsageError(f"min_nodes is {min_nodes}, more than max_nodes, {max_nodes}")


def _notice_unused(**kwargs: Any) -> None:
    named = sorted(name for name, value in kwargs.items() if value is not None)
    if named:
        notice(
            f"AmlCompute: {', '.join(named)} {verb(len(named), 'has', 'have')} no effect; rayjobs "
            f"creates no machines in Azure"
        )
