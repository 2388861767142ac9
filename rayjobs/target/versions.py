"""Which versions of client and target actor are compatible."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from pathlib import Path

from rayjobs.core.errors import TargetError


def parse(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, `0.1.0` → `(0, 1, 0)`; suffixes are ignored."""
    numbers = []
    for part in version.split("+", 1)[0].split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if len(digits) != len(part):
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def must_replace(actor_version: str, client_version: str) -> bool:
    """Whether to replace a running actor in place: it is older than the client.

    Its jobs continue: attempt hosts run outside Ray, and the new actor adopts them.
    """
    return parse(actor_version) < parse(client_version)


def check_client(actor_version: str, client_version: str) -> None:
    """Refuse a client that is older than the running actor by more than a patch.

    Raises:
        TargetError: the client would misunderstand what the actor writes.
    """
    actor, client = parse(actor_version), parse(client_version)
    if actor[:2] > client[:2]:
        raise TargetError(
            f"the target runs rayjobs {actor_version}, and this is rayjobs {client_version}. "
            f"Upgrade this installation, or stop the target with `rayjobs target stop`.",
            actor_version=actor_version,
            client_version=client_version,
        )


def installed() -> str | None:
    """Return the version of rayjobs on this disk now; None if it is not installed.

    A long-running process may have loaded an earlier version.
    """
    try:
        folder = Path(str(metadata.distribution("rayjobs").locate_file("")))
        # Installing another version changes this folder's time.
        return _version_at(folder, folder.stat().st_mtime_ns)
    except (metadata.PackageNotFoundError, OSError):
        return None


@lru_cache(maxsize=1)
def _version_at(_folder: Path, _changed_ns: int) -> str:
    """Return the version by reading the package's metadata, which takes milliseconds."""
    return metadata.version("rayjobs")
