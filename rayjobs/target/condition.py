"""The condition of a target, as clients show it; a client of a server needs no more than this."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message

if TYPE_CHECKING:
    from rayjobs.workspace.connection import Connection


class Standing(StrEnum):
    """The condition of a target."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPED = "stopped"  # a user stopped it
    ELSEWHERE = "elsewhere"  # it belongs to another machine, and does not run there
    ABSENT = "absent"  # it was never started for these jobs
    FAILING = "failing"  # will be tried again later
    UNKNOWN = "unknown"  # there is no target with that name


@dataclass(frozen=True)
class ServedCondition(Message):
    """The condition of a target as a server tells its clients; see `Condition`."""

    standing: Standing
    reason: str = ""
    may_run_on: bool = False


@dataclass(frozen=True)
class Condition:
    """The condition of a target, with one sentence about it unless it runs.

    Attributes:
        may_run_on: A user stopped it, and its cluster could not be reached: it may still run.
        has_begun: Whether this check began to start it.
    """

    standing: Standing
    reason: str = ""
    may_run_on: bool = False
    has_begun: bool = field(default=False, compare=False)

    @property
    def is_unknown(self) -> bool:
        """Whether no target with that name exists."""
        return self.standing is Standing.UNKNOWN

    @property
    def is_failing(self) -> bool:
        """Whether a revival failed and will be tried again later."""
        return self.standing is Standing.FAILING

    @property
    def is_stopped(self) -> bool:
        """Whether it does not run, as intended."""
        return self.standing is Standing.STOPPED


def looked_after_by(server: Connection, name: str) -> Condition:
    """Return the condition of a target that the server looks after."""
    found = server.ask("POST", f"/v1/targets/{name}/look", ServedCondition, repeats=True)
    return Condition(found.standing, found.reason, found.may_run_on)
