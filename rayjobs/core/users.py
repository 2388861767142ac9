"""The user of this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return the user's name for display."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        return f"uid {os.getuid()}"
