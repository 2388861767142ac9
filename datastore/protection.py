"""How a job is kept from changing the sources of its inputs, as far as its machine allows."""

from __future__ import annotations

from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Protection:
    """What a job's launcher can do in the job's own mount namespace.

    Attributes:
        read_only: Make files and folders read-only for the job, through every path.
        overlay: Mount a layer over a folder that receives everything the job writes there.
        why: Why `read_only` is not possible, in words.
        why_no_overlay: Why `overlay` is not possible, in words.
    """

    read_only: bool = False
    overlay: bool = False
    why: str = "only a job can have a mount namespace, and its reader is not a job"
    why_no_overlay: str = ""


NONE = Protection()
