"""The warm interpreters of a node, without starting any."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.environments import interpreter
from rayjobs.injob.identity import own_identity
from rayjobs.launch import hostclient
from rayjobs.node import warm
from rayjobs.node.warm import NodeWarm
from tests.support.attempts import data_request


def answers_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, asks: Sequence[Any], starts: Sequence[Any]
) -> list[bool]:
    """Return whether two jobs with an environment of their own find a warm interpreter.

    Args:
        asks: The errors of the questions to the interpreter, or None.
        starts: The same for the starts.
    """
    asked, started = list(asks), list(starts)

    async def ask(_python: str) -> None:
        if asked and (error := asked.pop(0)) is not None:
            raise error

    async def ensure_warm(*_arguments: Any, **_values: Any) -> None:
        if started and (error := started.pop(0)) is not None:
            raise error

    async def ping_warm(*_arguments: Any) -> Any:
        return SimpleNamespace(identity=own_identity())

    monkeypatch.setattr(warm, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(interpreter, "ask", ask)
    monkeypatch.setattr(hostclient, "ensure_warm", ensure_warm)
    monkeypatch.setattr(hostclient, "ping_warm", ping_warm)
    node = NodeWarm(folder, folder / "warm.log")
    python = folder / "python"
    python.symlink_to(sys.executable)
    plan = replace(data_request(folder / "a1").plan, python=str(python))

    async def twice() -> list[bool]:
        return [(await node.ready(plan))[0] is not None for _ in range(2)]

    return asyncio.run(twice())


def test_start_that_failed_once_is_tried_again(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = hostclient.WarmError("it did not come up in time")
    assert answers_after(short_path, monkeypatch, asks=[], starts=[error]) == [False, True]


def test_broken_interpreter_is_not_tried_again(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = PrepareError("no Python", failure_class=FailureClass.ENVIRONMENT)
    assert answers_after(short_path, monkeypatch, asks=[broken], starts=[]) == [False, False]


def test_lack_of_open_files_does_not_make_an_interpreter_broken(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = PrepareError("it does not answer", failure_class=FailureClass.ENVIRONMENT)
    full.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert answers_after(short_path, monkeypatch, asks=[full], starts=[]) == [False, True]
