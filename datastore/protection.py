"""How a job is kept from changing the sources of its inputs, as far as its machine allows it."""

from __future__ import annotations

from rayjobs.injob.lazydataclass import dataclass


@dataclass(frozen=True)
class Protection:
    """What a job's launcher can do in the job's own mount namespace.

    Attributes:
        read_only: Make files and folders read-only for the job, through every path.
        overlay: Mount a layer over a folder that receives everything the job writes there.
        why: Why not `read_only`, in words.
        why_no_overlay: Why not `overlay`, in words.
    """

    read_only: bool = False
    overlay: bool = False
    why: str = "its reader is not a job, which could have a mount namespace"
    why_no_overlay: str = ""


NONE = Protection()
