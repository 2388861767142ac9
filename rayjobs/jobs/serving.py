"""Which machine serves a target of a workspace that several machines use."""

from __future__ import annotations

from dataclasses import dataclass

from rayjobs.core.text import duration_text

# A target gives a sign of life this often, and is taken for dead after this time without one.
BEAT_S = 3.0
LIVE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Claimant:
    """Who claims a target.

    Attributes:
        owner: Identifies the home on its machine; random, the same for all its actors.
        host: The machine's name.
        home: The home's folder.
        version: Of rayjobs.
    """

    owner: str
    host: str
    home: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The last claim of a target.

    Attributes:
        epoch: Of the actor that claimed; empty after a take-over, until its actor claims.
        silent_s: How long ago it gave a sign of life, by the store's clock; None: never.
    """

    target: str
    claimant: Claimant
    epoch: str
    silent_s: float | None

    @property
    def is_live(self) -> bool:
        """Whether an actor serves it now."""
        return self.silent_s is not None and self.silent_s < LIVE_S

    @property
    def sentence(self) -> str:
        """Where the target runs, or what to do where none does."""
        host = self.claimant.host
        if self.is_live:
            return f"target {self.target!r} of this workspace runs on {host}"
        since = "" if self.silent_s is None else f" (it answered {_ago(self.silent_s)} ago)"
        return (
            f"target {self.target!r} of this workspace belongs to {host} and does not run "
            f"there{since}, so nothing serves the workspace. Start it there with `rayjobs target "
            f"start {self.target}`; or serve it from this machine: `rayjobs workspace take-over "
            f"{self.target}`"
        )


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What is known of a store's server, or its library.

    Attributes:
        server: Its name and version.
        schema: Version of the store's schema.
        clock_s: Its time, in seconds since 1970.
    """

    server: str
    schema: int
    clock_s: float

    @property
    def json(self) -> dict[str, str | int]:
        """What does not change from call to call."""
        return {"server": self.server, "schema": self.schema}


def _ago(seconds: float) -> str:
    return duration_text(float(round(seconds)))
