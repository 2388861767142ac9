"""Finds out how a node can protect the sources of inputs from attempts, by one trial."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.text import duration_text
from rayjobs.injob import views

if TYPE_CHECKING:
    from rayjobs.datastore.protection import Protection

log = logging.getLogger(__name__)

PROBE_S = 60.0


class InputViews:
    """How attempt hosts can protect the inputs of their attempts. Thread-safe."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        """Try protection below `folder`, which holds the attempts, but only if `is_on`."""
        self._folder = folder
        self._is_on = is_on
        self._lock = threading.Lock()
        self._found: Protection | None = None

    def protection(self) -> Protection:
        """Return what works here. Blocks briefly at its first use."""
        with self._lock:
            if self._found is None:
                self._found = self._try()
                if self._found.why:
                    log.info("inputs cannot be made read-only in place: %s", self._found.why)
            return self._found

    def _try(self) -> Protection:
        from rayjobs.datastore.protection import Protection

        if not self._is_on:
            why = "mount namespaces are switched off for this target (RAYJOBS_INPUT_VIEWS=0)"
            return Protection(why=why, why_no_overlay=why)
        try:
            # In a separate process, since it makes namespaces.
            done = subprocess.run(
                [sys.executable, "-S", "-E", str(views.__file__), str(self._folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_S,
                check=False,
            )
            answer = views.ViewsProbe.from_json(json.loads(done.stdout))
            return Protection(answer.read_only, answer.overlay, answer.why, answer.why_no_overlay)
        except subprocess.TimeoutExpired:
            why = f"the trial of mount namespaces did not end within {duration_text(PROBE_S)}"
        except (OSError, ValueError) as error:
            # The trial itself failed, which says nothing about the machine.
            log.warning("mount namespaces could not be tried: %r", error)
            why = f"mount namespaces could not be tried: {error!r}"
        return Protection(why=why, why_no_overlay=why)
