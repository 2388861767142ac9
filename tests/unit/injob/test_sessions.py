"""The host's records of sessions: the processes that users start next to a rank."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayjobs.injob import sessions as module
from rayjobs.injob.helpers import Helper
from rayjobs.injob.host_messages import HostRequest, HostSession
from rayjobs.injob.identity import Identity
from rayjobs.injob.sessions import MOST, Sessions


def test_host_keeps_only_the_last_ended_sessions() -> None:
    forker: Any = None  # the test starts no process
    sessions = Sessions(forker)
    names = [f"{number:032x}" for number in range(5 * MOST)]
    running, *ended = names
    sessions._sessions[running] = Helper("a session", Identity(1, 1, "boot"))

    def ask(name: str) -> Any:
        return sessions.answer(HostRequest("exec-state", session=name))

    for number, name in enumerate(ended):
        sessions._sessions[name] = Helper("a session", Identity(number, 1, "boot"), status=7 << 8)
        for _ in range(2):  # an answer may be lost and requested again
            assert ask(name) == HostSession(ended=True, exit_code=7)
    assert ask(running) == HostSession(ended=False)
    assert list(sessions._sessions) == [running, *ended[-MOST:]]
    assert ask(ended[-1]) == HostSession(ended=True, exit_code=7)


def test_session_that_became_another_users_does_not_stop_the_end_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, int]] = []

    def send(identity: Identity, number: int) -> bool:
        sent.append(("process", identity.pid))
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(module, "send_signal", send)
    monkeypatch.setattr(os, "killpg", lambda group, number: sent.append(("group", group)))
    forker: Any = None  # the test starts no process
    sessions = Sessions(forker)
    for number in (7, 8):
        sessions._sessions[str(number)] = Helper("a session", Identity(number, 1, "boot"))
    sessions.end()
    sessions.answer(HostRequest("exec-signal", session="7", number=signal.SIGINT))
    assert sent == [(what, pid) for pid in (7, 8, 7) for what in ("process", "group")]


def test_session_whose_agent_was_killed_does_not_block_the_host(tmp_path: Path) -> None:
    """The other ends of its files are closed, so that opening them would block."""
    files = tuple(str(tmp_path / name) for name in ("in", "out", "err"))
    for path in files:
        os.mkfifo(path)
    rank = SimpleNamespace(plan=SimpleNamespace(rank=0), setup=-1, has_ended=False)
    plan = SimpleNamespace(marker="m", work=str(tmp_path), rank_env=lambda *_: {})
    forker: Any = SimpleNamespace(
        ending=SimpleNamespace(has_begun=False), ranks=[rank], plan=plan, secrets={}
    )
    answers: list[Any] = []
    request = HostRequest("exec", session="a", rank=0, files=files)
    host = threading.Thread(
        target=lambda: answers.append(Sessions(forker).answer(request)), daemon=True
    )
    host.start()
    host.join(10)
    assert answers and "cannot be started" in answers[0].error
