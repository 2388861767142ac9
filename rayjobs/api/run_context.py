"""``Run`` as users import it: inside a job the job's own run, elsewhere the handle of any job.

Inside a job, only the standard library is imported; the handle's modules are imported on use.
"""

from __future__ import annotations

from typing import Any

from rayjobs.injob.run import Run


def _handle(experiment: Any = None, run_id: str = "", *args: Any, **kwargs: Any) -> type[Run]:
    from rayjobs.api.kinds import class_of
    from rayjobs.api.run import JobRun

    if experiment is None:
        return JobRun
    return class_of(experiment.workspace.store.job(run_id).kind)


Run._handle = staticmethod(_handle)  # injob may not import rayjobs, so the handle is set here

__all__ = ["Run"]
