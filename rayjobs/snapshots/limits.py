"""Size limits of snapshots."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rayjobs.core.errors import UsageError
from rayjobs.core.text import MIB
from rayjobs.injob.lazy_dataclass import dataclass

SIZE_VARIABLE = "RAYJOBS_SNAPSHOT_LIMIT_MIB"
FILES_VARIABLE = "RAYJOBS_SNAPSHOT_LIMIT_FILES"


@dataclass(frozen=True)
class Limits:
    """Upper bounds of a snapshot.

    Attributes:
        size: Bytes of all files together, before compression.
        files: Number of files, folders and links.
    """

    size: int = 300 * MIB
    files: int = 20_000


# A node does not know the client's limits, so its own bounds only stop decompression bombs.
UNPACK_LIMITS = Limits(size=16 * 1024 * MIB, files=1_000_000)


def limits_from_environment(variables: Mapping[str, str] | None = None) -> Limits:
    """Return the limits that environment variables set.

    ``AML_SNAPSHOT_NO_FILE_LIMIT`` (any value but empty, 0 and false) raises the number of files to
    that of `UNPACK_LIMITS`. Source: Azure ML SDK v1.

    Raises:
        UsageError: a limit is not a number above 0.
    """
    given = os.environ if variables is None else variables
    default = Limits()
    size = _positive(given, SIZE_VARIABLE, default.size / MIB)
    files = _positive(given, FILES_VARIABLE, default.files)
    if given.get("AML_SNAPSHOT_NO_FILE_LIMIT", "").lower() not in ("", "0", "false"):
        files = UNPACK_LIMITS.files
    return Limits(size=int(size * MIB), files=int(files))


def _positive(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise UsageError(f"{name} is {text!r}; give a number above 0, such as {default:g}")
    return value
