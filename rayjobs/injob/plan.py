"""The plan of one attempt on one node, as it stands in plan.json."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any, Mapping

from rayjobs.injob import interfaces
from rayjobs.injob.processes import MARKER_VARIABLE

_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)
SUPPORTED_VERSION = 1


class PlanError(ValueError):
    """A plan that cannot be carried out, with what is wrong in it."""


@dataclass(frozen=True)
class RankPlan:
    """One process of the attempt on this node."""

    rank: int
    local_rank: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """What an attempt host has to do; see docs/architecture.md for each field."""

    job: str
    attempt: int
    node: int
    node_count: int
    marker: str
    root: str
    socket: str
    kind: str
    argv: tuple[str, ...]
    command: str | None
    python: str
    cold: str | None
    env: Mapping[str, str]
    ranks: tuple[RankPlan, ...]
    grace_s: float
    max_duration_s: float | None
    memory_bytes: int | None
    pids_max: int | None
    log_cap_bytes: int | None
    threads: int | None
    injob_path: str
    master_port: int | None = None
    address: str | None = None  # where other nodes reach this one, if ranks meet
    lease_s: float | None = None
    lease_since_s: float | None = None  # on the node's boot clock; None: from the host's start on
    raylet: Mapping[str, Any] | None = None  # Ray's process on the node, with a lease
    stall_timeout_s: float | None = None
    beside: Mapping[str, Any] | None = None  # what the host does besides, see `beside.make`
    umask: int = 0o022  # of the ranks and of what they start
    soft_files: int | None = None  # the ranks' soft limit of open files; None: as their host has it
    hold: tuple[str, ...] = ("cgroup", "scan")  # what may hold its processes, see `tree.LEVELS`
    views: Mapping[str, Any] | None = None  # how its inputs are shown, see `views.Views`

    @property
    def work(self) -> str:
        """The working directory of the ranks."""
        return os.path.join(self.root, "work")

    @property
    def script(self) -> str:
        """The script's absolute path (kind "script")."""
        return os.path.join(self.work, self.argv[0])

    def log_of(self, rank: int) -> str:
        """The file that holds what a rank printed."""
        return os.path.join(self.root, "log", f"driver_{rank}.log")

    def stacks_of(self, rank: int) -> str:
        """The file to which a rank writes its stacks when it is asked to."""
        return os.path.join(self.root, f"stacks-{rank}.txt")

    def rank_env(self, rank: RankPlan, secrets: Mapping[str, str]) -> dict[str, str]:
        """The complete environment of a rank."""
        env = {**self.env, **rank.env, **secrets}
        env[MARKER_VARIABLE] = self.marker  # so that a program the rank starts is found too
        env["PWD"] = self.work
        env.setdefault("TMPDIR", os.path.join(self.root, "tmp"))
        for name, value in interfaces.variables(self.address).items():
            env.setdefault(name, value)
        if self.threads is not None:
            env.setdefault("OMP_NUM_THREADS", str(self.threads))
        return env


def expand(argument: str, env: Mapping[str, str]) -> str:
    """`argument` with `$NAME` and `${NAME}` replaced; a name that `env` lacks stays as written."""

    def value(match: re.Match[str]) -> str:
        return env.get(match.group(1) or match.group(2), match.group(0))

    return _REFERENCE.sub(value, argument)


def load(path: str) -> Plan:
    """Read a plan.

    Raises:
        PlanError: the file cannot be read, is not a plan, or is of a newer version.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from error
    return parse(values)


def parse(values: Mapping[str, Any]) -> Plan:
    """Build a plan from its JSON object.

    Raises:
        PlanError: a field is missing or has the wrong form.
    """
    if not isinstance(values, dict) or values.get("version") != SUPPORTED_VERSION:
        raise PlanError(
            f"the plan has version {values.get('version') if isinstance(values, dict) else None!r};"
            f" this host reads version {SUPPORTED_VERSION}. Use the same rayjobs on every node."
        )
    try:
        plan = Plan(
            job=str(values["job"]),
            attempt=int(values["attempt"]),
            node=int(values.get("node", 0)),
            node_count=int(values.get("node_count", 1)),
            marker=str(values["marker"]),
            root=str(values["root"]),
            socket=str(values["socket"]),
            kind=str(values["kind"]),
            argv=tuple(str(item) for item in values.get("argv") or ()),
            command=values.get("command"),
            python=str(values["python"]),
            cold=values.get("cold"),
            env={str(key): str(value) for key, value in values["env"].items()},
            ranks=tuple(
                RankPlan(
                    rank=int(item["rank"]),
                    local_rank=int(item.get("local_rank", index)),
                    env={str(key): str(value) for key, value in (item.get("env") or {}).items()},
                )
                for index, item in enumerate(values["ranks"])
            ),
            grace_s=float(values.get("grace_s", 10.0)),
            max_duration_s=_optional(values.get("max_duration_s"), float),
            memory_bytes=_optional(values.get("memory_bytes"), int),
            pids_max=_optional(values.get("pids_max"), int),
            log_cap_bytes=_optional(values.get("log_cap_bytes"), int),
            threads=_optional(values.get("threads"), int),
            injob_path=str(values["injob_path"]),
            master_port=_optional(values.get("master_port"), int),
            address=_optional(values.get("address"), str),
            lease_s=_optional(values.get("lease_s"), float),
            lease_since_s=_optional(values.get("lease_since_s"), float),
            raylet=_optional(values.get("raylet"), dict),
            stall_timeout_s=_optional(values.get("stall_timeout_s"), float),
            beside=_optional(values.get("beside"), dict),
            umask=int(values.get("umask", 0o022)),
            soft_files=_optional(values.get("soft_files"), int),
            hold=tuple(str(level) for level in values.get("hold") or ("cgroup", "scan")),
            views=_optional(values.get("views"), dict),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the plan is incomplete or malformed: {error!r}") from error
    _check(plan)
    return plan


def _optional(value: Any, convert: Any) -> Any:
    return None if value is None else convert(value)


def _check(plan: Plan) -> None:
    if plan.kind == "script" and not plan.argv:
        raise PlanError("the plan is of kind script, but argv is empty; name the script in argv[0]")
    if plan.kind == "command" and not plan.command:
        raise PlanError("the plan is of kind command, but command is empty")
    if plan.kind not in ("script", "command"):
        raise PlanError(f"the plan's kind is {plan.kind!r}; it must be script or command")
    if not set(plan.hold) <= {"cgroup", "namespace", "scan"}:
        raise PlanError(f"the plan's hold is {plan.hold!r}; its levels are cgroup, namespace, scan")
    if not 0 <= plan.umask <= 0o777:
        raise PlanError(f"the plan's umask is {plan.umask}; it must be 0 to 511 (octal 777)")
    if not plan.ranks:
        raise PlanError("the plan has no ranks")
    if not plan.marker or len(plan.marker.split()) != 1:
        raise PlanError(f"the plan's marker {plan.marker!r} must be one word")
    if len(os.fsencode(plan.socket)) > 107:
        raise PlanError(f"the socket path {plan.socket} is longer than the 107 bytes Unix allows")
