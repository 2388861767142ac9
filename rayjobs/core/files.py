"""Files written whole or not at all, and locks between processes.

The code is in `rayjobs.injob`, since attempt hosts need it in every environment.
"""

from rayjobs.injob.files import (
    is_locked,
    locked,
    locked_if_free,
    replacing,
    try_lock,
    write_atomic,
)

__all__ = ["is_locked", "locked", "locked_if_free", "replacing", "try_lock", "write_atomic"]
