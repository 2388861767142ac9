"""``Run`` as users import it: the run of this job inside one, else a handle on a job.

Inside a job nothing but the standard library is imported; the handle's modules come on use.
"""

from __future__ import annotations

from rayjobs.injob.run import Run


def _handle() -> type[Run]:
    from rayjobs.api.run import JobRun

    return JobRun


Run._handle = staticmethod(_handle)  # injob itself knows nothing of the rest

__all__ = ["Run"]
