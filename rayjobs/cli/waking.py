"""Tells a target that something changed; without an answer its poll finds out within a second."""

from __future__ import annotations

from pathlib import Path

from rayjobs.core.errors import RayjobsError, ServedElsewhereError
from rayjobs.core.paths import home
from rayjobs.target.condition import Condition, Standing
from rayjobs.target.revive import look_after
from rayjobs.target.starting import wake


def wake_quietly(target: str, workspace: Path) -> Condition:
    """Return the target's state once it has the message; one that died is brought back meanwhile.

    Never waits long, never fails.
    """
    answers: bool | None
    try:
        answers = wake(target, home=home(), workspace=workspace, registers=False)
    except ServedElsewhereError:
        answers = None  # the look says where, and what to do
    except TimeoutError:
        answers = True  # it lives and is busy; its poll finds out
    except (RayjobsError, OSError) as error:
        return Condition(Standing.UNKNOWN, str(error))
    return look_after(target, home=home(), workspace=workspace, answers=answers)
