"""A command on a separate terminal: tests press its keys and read its screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 150.0  # of one command, on a machine with other work
PROGRAM = Path(sys.executable).with_name("rayjobs")


class Screen:
    """The screen of a terminal, which understands a small part of xterm's sequences.

    Attributes:
        wrapped: How many lines were longer than the screen is wide.
        scrolled: How many lines scrolled off the top, into the scrollback of the normal screen.
        is_alternate: Whether the alternate screen is shown, which has no scrollback.

    Raises:
        AssertionError: An unknown control sequence was received.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self._columns = columns
        self._lines = lines
        self._cells = [[" "] * columns for _ in range(lines)]
        self._row = self._column = 0
        self._kept = ""
        self._normal = (self._cells, 0, 0)
        self.wrapped = self.scrolled = 0
        self.is_alternate = False

    @property
    def text(self) -> str:
        """The lines, without the blanks at their ends."""
        return "\n".join("".join(row).rstrip() for row in self._cells).rstrip()

    def feed(self, text: str) -> None:
        """Show more output, which may end in the middle of a control sequence."""
        text = self._kept + text
        self._kept = ""
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\x1b":
                found = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])").match(text, position)
                if found is None:
                    assert len(text) - position < 12, repr(text[position : position + 20])
                    self._kept = text[position:]
                    return
                self._control(found[1], found[2])
                position = found.end()
                continue
            position += 1
            if character == "\r":
                self._column = 0
            elif character == "\n":
                self._feed_line()
            elif character == "\b":
                self._column = max(0, self._column - 1)
            else:
                self._put(character)

    def _put(self, character: str) -> None:
        if self._column >= self._columns:
            self.wrapped += 1
            self._column = 0
            self._feed_line()
        self._cells[self._row][self._column] = character
        self._column += 1

    def _feed_line(self) -> None:
        if self._row < self._lines - 1:
            self._row += 1
        else:
            self._cells = [*self._cells[1:], [" "] * self._columns]
            self.scrolled += 1

    def _control(self, given: str, kind: str) -> None:
        count = int(given) if given.isdigit() else 1
        row = self._cells[self._row]
        if kind == "A":
            self._row = max(0, self._row - count)
        elif kind == "B":
            self._row = min(self._lines - 1, self._row + count)
        elif kind == "K":
            start = 0 if given in ("1", "2") else self._column
            end = self._column + 1 if given == "1" else self._columns
            row[start:end] = [" "] * (end - start)
        elif kind == "H" and not given:
            self._row = self._column = 0
        elif kind == "J" and not given:
            row[self._column :] = [" "] * (self._columns - self._column)
            for below in self._cells[self._row + 1 :]:
                below[:] = [" "] * self._columns
        elif given == "?1049" and self.is_alternate != (kind == "h"):
            self._switch()
        else:
            # Colors, and showing or hiding the cursor, change no character.
            assert kind == "m" or given == "?25", f"ESC[{given}{kind}"

    def _switch(self) -> None:
        """Switch to the alternate screen, which is empty, or back to the unchanged normal one."""
        self.is_alternate = not self.is_alternate
        if self.is_alternate:
            self._normal = (self._cells, self._row, self._column)
            self._cells = [[" "] * self._columns for _ in range(self._lines)]
        else:
            self._cells, self._row, self._column = self._normal


class Terminal:
    """A running command on a terminal."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.shown = b""
        self.screen = Screen(columns, lines)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.process = subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            # Children would inherit the size of another terminal, which readline exports.
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")},
            close_fds=True,
            preexec_fn=_take_terminal,
            start_new_session=True,
        )
        os.close(slave)

    def until(self, text: bytes | None) -> bytes:
        """Read until `text` was shown, or until the command ends if it is None."""
        self._read(lambda: text is not None and text in self.shown, to_end=text is None)
        return self.shown

    def until_screen(self, fact: Callable[[str], bool]) -> str:
        """Read until `fact` holds for the current screen; return the screen."""
        self._read(lambda: fact(self.screen.text), to_end=False)
        return self.screen.text

    def _read(self, done: Callable[[], bool], *, to_end: bool) -> None:
        deadline = time.monotonic() + DEADLINE_S
        ready = select.poll()  # select() takes no descriptor above 1023
        ready.register(self._master, select.POLLIN)
        while not done():
            assert time.monotonic() < deadline, self.screen.text
            if not ready.poll(1000):
                continue
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""  # Linux returns EIO when the last process has closed the other side
            if not data:
                assert to_end, self.screen.text
                break
            self.shown += data
            self.screen.feed(self._decoder.decode(data))

    def press(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._master, keys)

    def close(self) -> int:
        """Wait for the command's end; return its exit code."""
        self.until(None)
        code = self.process.wait(DEADLINE_S)
        os.close(self._master)
        return code

    def kill(self) -> None:
        """End the command if it still runs, as closing a terminal's window does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            os.close(self._master)


def _take_terminal() -> None:
    # Keys such as Ctrl-C reach the foreground process group of the controlling terminal.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
