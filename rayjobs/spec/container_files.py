"""Files named in a job's `container`: reads a Dockerfile's text and makes paths absolute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, Problem, SpecError
from rayjobs.core.text import size_text

# Prefixes of an image's path or name, as in skopeo.
TRANSPORTS = ("docker", "oci", "oci-archive", "docker-archive", "tar", "dir")
DOCKERFILE_LIMIT = 256 * 1024  # bytes
_TEXT = re.compile(r"^\s*(#|FROM\b|ARG\b)", re.IGNORECASE)
_RELATIVE = ("./", "../", "~")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")


def anchored_container(value: Any, folder: Path) -> Any:
    """Return a spec's `container` with absolute paths, and with the text of its Dockerfile.

    An absolute path of an image is a path on the target's nodes. A path that begins with ``./``,
    ``../`` or ``~``, or ends like an archive, is relative to `folder`; anything else is a name.

    Raises:
        NotFoundError: the Dockerfile does not exist.
        SpecError: the Dockerfile cannot be read.
    """
    if isinstance(value, str):
        return _anchored_image(value, folder)
    if not isinstance(value, Mapping):
        return value
    result = dict(value)
    if isinstance(result.get("image"), str):
        result["image"] = _anchored_image(result["image"], folder)
    dockerfile = result.get("dockerfile")
    if isinstance(dockerfile, str) and not is_dockerfile_text(dockerfile):
        result["dockerfile"] = read_dockerfile(folder / Path(dockerfile).expanduser())
    return result


def is_dockerfile_text(text: str) -> bool:
    """Whether a text is the content of a Dockerfile rather than its name."""
    return "\n" in text or _TEXT.match(text) is not None


def read_dockerfile(path: Path) -> str:
    """Return the text of a Dockerfile.

    Raises:
        NotFoundError: it does not exist.
        SpecError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(DOCKERFILE_LIMIT + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no Dockerfile {path}. Check its name") from None
    except OSError as error:
        raise _refused(f"{path} cannot be read: {error.strerror}.") from error
    if len(raw) > DOCKERFILE_LIMIT:
        raise _refused(f"{path} is larger than {size_text(DOCKERFILE_LIMIT)}.")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _refused(f"{path} is not UTF-8 text.") from None


def _refused(what: str) -> SpecError:
    return SpecError(problems=[Problem("container.dockerfile", what)])


def _anchored_image(text: str, folder: Path) -> str:
    transport, separator, rest = text.partition(":")
    if not separator or transport not in TRANSPORTS or transport == "docker":
        transport, rest = "", text
    is_path = rest.startswith(_RELATIVE) or rest.lower().endswith(_ARCHIVES)
    if not is_path or rest.startswith("/"):
        return text
    path = str(folder / Path(rest).expanduser())
    return f"{transport}:{path}" if transport else path
