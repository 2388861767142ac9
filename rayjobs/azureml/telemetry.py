"""Names of ``azureml.telemetry``: rayjobs collects nothing, so there is nothing to switch off.

Standard library only: scripts call these inside jobs of any environment.
"""

from __future__ import annotations

import logging
from typing import Any


def set_diagnostics_collection(
    send_diagnostics: bool = True, verbosity: int = logging.INFO, reason: str = ""
) -> None:
    """Do nothing: rayjobs sends no diagnostics in any case."""


def is_diagnostics_collection_info_available() -> bool:
    """Return True, as if the user had declined diagnostics."""
    return True


def get_telemetry_log_handler(*args: Any, **kwargs: Any) -> logging.Handler:
    """Return a handler that drops every record."""
    return logging.NullHandler()
