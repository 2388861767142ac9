"""Turns an attempt host's signals into events of its loop: children that ended, requests to end."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Optional


class HostSignals:
    """Catches a host's signals; each one wakes its loop, which then checks what has changed."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Catch them from now on; `selector` is the one that the host's loop waits on.

        Raises:
            OSError: there are no descriptors left for the pipe.
        """
        self._end_signal: Optional[int] = None
        self._reader, writer = os.pipe()
        for descriptor in (self._reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # Python writes to the wake-up pipe only for signals that have a Python handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._record_end_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        selector.register(self._reader, selectors.EVENT_READ, self._drain)

    @property
    def end_signal(self) -> Optional[str]:
        """The name of the signal that requested the host's end; None: there was none."""
        return None if self._end_signal is None else signal.Signals(self._end_signal).name

    def _drain(self, _: int) -> None:
        try:
            while os.read(self._reader, 4096):
                pass
        except BlockingIOError:
            return

    def _record_end_signal(self, number: int, _frame: object) -> None:
        self._end_signal = number  # only recorded: the handler may have interrupted anything
