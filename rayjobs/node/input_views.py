"""Finds out how a node can protect the sources of inputs from attempts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.injob import views
from rayjobs.node import probe

if TYPE_CHECKING:
    from rayjobs.datastore.protection import Protection

log = logging.getLogger(__name__)


class InputViews:
    """How attempt hosts can protect the inputs of their attempts. Thread-safe."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        """Try protection below `folder`, which holds the attempts, but only if `is_on`."""
        self._folder = folder
        self._is_on = is_on
        self._found = probe.ProbeResult(self._try, failed=_without)

    def protection(self) -> Protection:
        """Return what works here. Blocks briefly at its first use."""
        return self._found.get()

    def _try(self) -> Protection:
        from rayjobs.datastore.protection import Protection

        if not self._is_on:
            return _without("they are switched off for this target (RAYJOBS_INPUT_VIEWS=0)")
        answer = probe.run(views, views.ViewsProbe, str(self._folder))
        if answer.why:
            log.info("inputs cannot be made read-only in place: %s", answer.why)
        return Protection(answer.read_only, answer.overlay, answer.why, answer.why_no_overlay)


def _without(cause: str) -> Protection:
    from rayjobs.datastore.protection import Protection

    why = f"mount namespaces cannot be used: {cause}"
    return Protection(why=why, why_no_overlay=why)
