"""How a job is kept from changing what its inputs come from, as far as its machine allows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Protection:
    """What a job's launcher can do in the job's own mount namespace.

    Attributes:
        read_only: Make files and folders read-only for the job, by whatever path.
        overlay: Put a layer over a folder that takes all that the job writes there.
        why: Why not `read_only`, in words.
        why_no_overlay: Why not `overlay`, in words.
    """

    read_only: bool = False
    overlay: bool = False
    why: str = "what reads it is not a job, which could have a mount namespace"
    why_no_overlay: str = ""


NONE = Protection()
