"""Errors of sweeps.

RayjobsError
├── SpecError
│   └── SweepError        a sweep's space, policy, limits or file is wrong      exit code 2
├── UsageError
│   └── SweepUsageError   a call that is invalid for this sweep                 exit code 2
└── TuningDependencyError an optional library (optuna …) is missing             exit code 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayjobs.core.errors import Problem, RayjobsError, SpecError, UsageError
from rayjobs.core.text import counted
from rayjobs.injob.azureml.exceptions import HyperDriveConfigException, HyperDriveException


class SweepError(SpecError, HyperDriveConfigException):
    """A sweep's definition is wrong; `problems` lists all problems at once."""

    def __init__(self, message: str = "", *, problems: Sequence[Problem] = ()) -> None:
        listed = tuple(problems)
        text = message or f"the sweep has {counted(len(listed), 'problem')}"
        super().__init__(text, problems=listed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.headline, self.problems)


def _rebuild(message: str, problems: tuple[Problem, ...]) -> SweepError:
    return SweepError(message, problems=problems)


class SweepUsageError(UsageError, HyperDriveException):
    """A call that is invalid for this sweep."""


class TuningDependencyError(RayjobsError):
    """An optional library that this feature needs is not installed."""

    def __init__(self, feature: str, library: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs {library}, which is not installed here. "
            f"Install it with: pip install 'rayjobs[{extra}]'"
        )
        self.feature = feature
        self.library = library
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return TuningDependencyError, (self.feature, self.library, self.extra)


def problem(path: str, message: str, remedy: str = "", *, is_missing: bool = False) -> SweepError:
    """Return an error with one problem, for callers that find a single problem."""
    return SweepError(problems=[Problem(path, message, remedy, is_missing)])


def joined(path: str, found: SweepError) -> list[Problem]:
    """Return the problems of `found` with `path` as a prefix of their paths."""
    return [
        Problem(".".join(part for part in (path, one.path) if part), one.message, one.remedy)
        for one in found.problems
    ]
