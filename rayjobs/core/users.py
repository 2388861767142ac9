"""Who uses this process."""

from __future__ import annotations

import getpass
import os


def user_name() -> str:
    """Return the user's name, for people."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"
