"""Sets up rayjobs' own log lines in a target's processes."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def set_up_logging(folder: Path, name: str) -> None:
    """Write rayjobs' own log lines to a file of the target, never to a user's log."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"{name}.log")
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s")
    )
    ours = logging.getLogger("rayjobs")
    ours.handlers[:] = [handler]
    ours.setLevel(os.environ.get("RAYJOBS_LOG_LEVEL", "INFO"))
    ours.propagate = False
    if name == "target":
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: Any, error: BaseException, trace: Any) -> None:
    log.critical("uncaught", exc_info=(kind, error, trace))
