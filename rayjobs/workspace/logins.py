"""The login at a server: address, token and certificate authority, which a file stores."""

from __future__ import annotations

import json
from pathlib import Path

from rayjobs.core import paths
from rayjobs.core.errors import UsageError
from rayjobs.core.files import write_atomic
from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Login:
    """A server's address, and the token for it.

    Attributes:
        address: ``https://HOST:PORT``; several servers of one workspace are separated by commas.
        ca_file: Certificates of a private authority; empty for the system's own authorities.
    """

    address: str
    token: str
    ca_file: str = ""


def login_file() -> Path:
    """Return the file that stores the login; only its user may read it."""
    return paths.home() / "login.json"


def save_login(login: Login) -> None:
    """Store a login for later commands."""
    path = login_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    values = {"address": login.address, "token": login.token}
    if login.ca_file:
        values["ca_file"] = login.ca_file
    text = json.dumps(values)
    write_atomic(path, text.encode() + b"\n", mode=0o600)


def drop_login() -> bool:
    """Delete the stored login; return False if there was none."""
    try:
        login_file().unlink()
    except FileNotFoundError:
        return False
    return True


def read_login() -> Login | None:
    """Return the stored login, or None.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        values = json.loads(login_file().read_text(encoding="utf-8"))
        return Login(str(values["address"]), str(values["token"]), str(values.get("ca_file") or ""))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the login in {login_file()} cannot be read ({error}); run `rayjobs login` again"
        ) from error
