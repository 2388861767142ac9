"""The view of a target's answers for users of one workspace: a target can serve several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OTHER = "another workspace"


def own_view(answer: Mapping[str, Any], workspace: str) -> dict[str, Any]:
    """Return a target's answer without the jobs and folders of other workspaces.

    The capacity that they use stays: it shows what is left for the workspace's own jobs.

    Args:
        answer: The answer to "status" or "explain"; other fields stay.
        workspace: Path of the caller's workspace.
    """
    own = f"{workspace}::"

    def shown(key: str) -> str:
        return key if key.startswith(own) else OTHER

    found = dict(answer)
    if "live" in found:
        found["live"] = [key for key in found["live"] if key.startswith(own)]
    if "waiting" in found:
        waiting = found["waiting"].items()
        found["waiting"] = {key: why for key, why in waiting if key.startswith(own)}
    if "refused" in found:
        refused = found["refused"].items()
        found["refused"] = {path: why for path, why in refused if path == workspace}
    if "workspaces" in found:
        found["workspaces"] = [path for path in found["workspaces"] if path == workspace]
    if "allocations" in found:
        found["allocations"] = [
            one
            if one["job"] is None or one["job"].startswith(own)
            else {**one, "job": f"{OTHER} {number}"}
            for number, one in enumerate(found["allocations"], 1)
        ]
    if isinstance(found.get("decision"), Mapping):
        ahead = [shown(key) for key in found["decision"].get("ahead", ())]
        found["decision"] = {**found["decision"], "ahead": ahead}
    return found
