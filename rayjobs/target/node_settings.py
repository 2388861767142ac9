"""The settings of a node's agent, such as the containment of jobs and its idle time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.target.local_head import LOCAL

CONTAINMENT = "RAYJOBS_HOLD"
LINGER = "RAYJOBS_AGENT_LINGER_S"
SCRATCH = "RAYJOBS_SCRATCH"
SHARES_DISK = "RAYJOBS_SHARES_DISK"
INPUT_VIEWS = "RAYJOBS_INPUT_VIEWS"
IMAGE_MOST_GIB = "RAYJOBS_IMAGE_MOST_GIB"
AUTO = "auto"
# An agent takes half a second to start and uses 100 MB of memory. In an autoscaled cluster it
# prevents the removal of its node. The local node is not removed, so its agent stays until users
# have most likely finished.
LOCAL_LINGER_S = 600.0
CLUSTER_LINGER_S = 45.0


@dataclass(frozen=True)
class NodeSettings:
    """How an agent behaves, from the environment in which its target was started.

    Attributes:
        containment: ``auto`` (the best that the machine allows), or the level that is required:
            ``cgroup``, ``namespace`` or ``scan``.
        linger_s: Seconds without an attempt after which the agent ends.
        scratch: The node's own folder for attempts, snapshots and caches, such as a fast local
            disk; None: a folder in the target's home.
        shares_disk: Whether it may use a workspace's folder if it sees one. If not, and on any
            machine other than the target's, everything goes to the target through Ray.
        input_views: Whether attempts may get a mount namespace in which the sources of their inputs
            are read-only; if not, they get copies.
        image_most_gib: The size of a container image, unpacked, above which it is refused.
    """

    containment: str = AUTO
    linger_s: float = CLUSTER_LINGER_S
    scratch: Path | None = None
    shares_disk: bool = True
    input_views: bool = True
    image_most_gib: float = 100.0

    @classmethod
    def read(cls, target: str, environment: Mapping[str, str] = os.environ) -> NodeSettings:
        """Return the settings for the agents of a target.

        Raises:
            UsageError: a variable has an invalid value.
        """
        from rayjobs.injob.tree import LEVELS  # keepers use this module too, but not the tree

        containment = environment.get(CONTAINMENT, "").strip() or AUTO
        if containment not in (AUTO, *LEVELS):
            raise UsageError(
                f"{CONTAINMENT} is {containment!r}; it must be one of {AUTO}, {', '.join(LEVELS)}. "
                "Correct or unset it."
            )
        default_s = LOCAL_LINGER_S if target == LOCAL else CLUSTER_LINGER_S
        linger_s = _number(environment, LINGER, default_s)
        if not 0 <= linger_s < 1e9:
            raise _wrong(environment, LINGER, "a number of seconds, 0 or more")
        most_gib = _number(environment, IMAGE_MOST_GIB, cls.image_most_gib)
        if not 0 < most_gib < 1e9:
            raise _wrong(environment, IMAGE_MOST_GIB, "a number of GiB above 0")
        shares_disk = environment.get(SHARES_DISK, "").strip() or "1"
        if shares_disk not in ("0", "1"):
            raise UsageError(f"{SHARES_DISK} is {shares_disk!r}; it must be 0 or 1.")
        input_views = environment.get(INPUT_VIEWS, "").strip() or "1"
        if input_views not in ("0", "1"):
            raise UsageError(f"{INPUT_VIEWS} is {input_views!r}; it must be 0 or 1.")
        folder = _scratch(environment)
        return cls(containment, linger_s, folder, shares_disk == "1", input_views == "1", most_gib)


def node_root(home: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return this machine's scratch folder: the one that the environment names, or the home's."""
    return _scratch(environment) or home / "node"


def _scratch(environment: Mapping[str, str]) -> Path | None:
    text = environment.get(SCRATCH, "").strip()
    return Path(text).absolute() if text else None


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    """Return a variable's number; NaN if it is not a number."""
    text = environment.get(name, "").strip()
    try:
        return float(text) if text else default
    except ValueError:
        return float("nan")


def _wrong(environment: Mapping[str, str], name: str, must_be: str) -> UsageError:
    text = environment[name].strip()
    return UsageError(f"{name} is {text!r}; it must be {must_be}. Correct or unset it.")
