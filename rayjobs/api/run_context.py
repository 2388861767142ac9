"""``Run`` as users import it: the run of this job inside one, else a handle on a job.

Inside a job nothing but the standard library is imported; the handle's modules come on use.
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


Run._handle = staticmethod(_handle)  # injob itself knows nothing of the rest

__all__ = ["Run"]
