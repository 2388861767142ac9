"""Records which machine serves a target of a workspace that several machines use."""

from __future__ import annotations

from rayjobs.core.text import duration_text
from rayjobs.injob.lazy_dataclass import dataclass

# How often a target gives a sign of life, and after how long without one it counts as dead.
BEAT_S = 3.0
LIVE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """The home that claims a target.

    Attributes:
        owner: Identifies the home on its machine; random, the same for all its actors.
        host: The machine's name.
        home: The home's folder.
        version: Its version of rayjobs.
    """

    owner: str
    host: str
    home: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The last claim of a target.

    Attributes:
        epoch: The epoch of the actor that claimed it; empty from a takeover until an actor claims.
        silent_s: The seconds since its last sign of life, by the store's clock; None: never.
    """

    target: str
    claimant: Claimant
    epoch: str
    silent_s: float | None

    @property
    def is_live(self) -> bool:
        """Whether an actor serves the target now."""
        return self.silent_s is not None and self.silent_s < LIVE_S

    @property
    def sentence(self) -> str:
        """Where the target runs, or what to do if it does not run."""
        host = self.claimant.host
        if self.is_live:
            return f"target {self.target!r} of this workspace runs on {host}"
        silent_s = self.silent_s
        since = "" if silent_s is None else f" (last sign of life: {_ago(silent_s)} ago)"
        return (
            f"target {self.target!r} of this workspace belongs to {host} and does not run "
            f"there{since}, so nothing serves the workspace. Start it there with `rayjobs target "
            f"start {self.target}`, or serve the workspace from this machine with `rayjobs "
            f"workspace take-over {self.target}`"
        )


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """The known facts about a store's server, or about its library.

    Attributes:
        server: Its name and version.
        schema: The version of the store's schema.
        clock_s: Its time, in seconds since 1970.
    """

    server: str
    schema: int
    clock_s: float

    @property
    def json(self) -> dict[str, str | int]:
        """The facts that do not change from call to call."""
        return {"server": self.server, "schema": self.schema}


def _ago(seconds: float) -> str:
    return duration_text(float(round(seconds)))
