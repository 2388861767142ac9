"""`rayjobs ls -w` on a terminal: redrawn in place, without leftovers in the scrollback."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.terminal import Terminal
from tests.unit.cli.conftest import Queue

COLUMNS, LINES = 80, 10


@pytest.fixture
def watched(queue: Queue) -> Iterator[Terminal]:
    """The list of more jobs than the screen has lines."""
    for number in range(LINES + 5):
        queue.submit(f"job-{number}-with-a-name-of-some-length")
    command = Terminal("ls", "-w", columns=COLUMNS, lines=LINES)
    yield command
    command.kill()


@pytest.mark.long
def test_a_watched_list_is_redrawn_in_place(queue: Queue, watched: Terminal) -> None:
    screen = watched.screen
    first = watched.until_screen(lambda text: "limits the list" in text)
    assert screen.is_alternate
    newest = f"job-{LINES + 4}-"
    assert first.splitlines()[0].split()[:2] == ["ID", "NAME"]
    assert newest in first.splitlines()[1]
    for number in range(3):
        name = f"later-{number}"
        queue.submit(name)
        shown = watched.until_screen(partial(_names, name))
        assert shown.splitlines()[0] == first.splitlines()[0]
        assert name in shown.splitlines()[1]
        assert len(shown.splitlines()) == LINES - 1
    assert (screen.scrolled, screen.wrapped) == (0, 0)

    watched.press(b"\x03")
    assert watched.close() == 130
    assert not watched.screen.is_alternate
    # The last list remains once, complete: more lines than the screen has.
    printed = watched.shown.rpartition(b"\x1b[?1049l")[2].decode().splitlines()
    assert sum("ID " in line for line in printed) == 1
    assert f"{name} " in "\n".join(printed)
    assert screen.wrapped == 0


def _names(name: str, text: str) -> bool:
    return name in text
