"""Notifies a target of a change; without an answer, its poll notices within a second."""

from __future__ import annotations

from pathlib import Path

from rayjobs.core.errors import RayjobsError, ServedElsewhereError
from rayjobs.core.paths import home
from rayjobs.target.condition import Condition, Standing
from rayjobs.target.revive import look_after
from rayjobs.target.starting import wake


def wake_quietly(target: str, workspace: Path) -> Condition:
    """Return the target's state once it has the message; meanwhile, restart a target that died.

    Never waits long, never fails.
    """
    answers: bool | None
    try:
        # False also stands for an actor that answers, but is older or being stopped.
        answers = wake(target, home=home(), workspace=workspace, registers=False) or None
    except ServedElsewhereError:
        answers = None  # the outlook reports where, and what to do
    except TimeoutError:
        answers = True  # it is alive and busy; its poll will notice
    except (RayjobsError, OSError) as error:
        return Condition(Standing.UNKNOWN, str(error))
    return look_after(target, home=home(), workspace=workspace, answers=answers)
