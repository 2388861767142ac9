"""``Run`` as a script imports it, with the run of its process: that of a job, or an offline one.

Signatures follow Azure ML SDK v1 (``azureml.core.Run``).
"""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Tuple

from rayjobs.injob.logging_run import LoggingRun, Run, RunNotSupportedError

_contexts: Dict[Tuple[Any, ...], LoggingRun] = {}


def _context(allow_offline: bool) -> LoggingRun:
    """See `Run.get_context`."""
    environment = os.environ
    run_id = environment.get("RAYJOBS_RUN_ID")
    folder = environment.get("RAYJOBS_METRICS_DIR")
    if run_id and folder:
        rank = _rank(environment)
        key = (run_id, environment.get("RAYJOBS_ATTEMPT"), folder, rank)
        found = _contexts.get(key)
        if found is None:
            from rayjobs.injob.submitted import SubmittedRun

            found = _contexts.setdefault(key, SubmittedRun(run_id, folder, rank))
        return found
    if not allow_offline:
        raise RunNotSupportedError(
            "this process does not belong to a job (RAYJOBS_RUN_ID is not set); submit the "
            "script, or call get_context() with allow_offline=True"
        )
    found = _contexts.get(("offline",))
    if found is None:
        from rayjobs.injob.offline import OfflineRun

        found = _contexts.setdefault(("offline",), OfflineRun())
    return found


def _rank(environment: Mapping[str, str]) -> int:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK"):
        value = environment.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


Run._context = _context

__all__ = ["LoggingRun", "Run", "RunNotSupportedError"]
