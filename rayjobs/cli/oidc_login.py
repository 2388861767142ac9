"""The device flow of OAuth 2.0 (RFC 8628): the user logs in with a browser on any machine."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from rayjobs.core.errors import UnreachableError, UsageError
from rayjobs.workspace.connection import Connection
from rayjobs.workspace.http_messages import LoginAnswer, LoginProvider, LoginRequest
from rayjobs.workspace.logins import Login

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
TIMEOUT_S = 30.0
PAUSE_S = 5.0  # unless the provider sets another
LONGEST_S = 900.0


def token_of(login: Login, note: Callable[[str], None], *, first_patience_s: float) -> str:
    """Return a server's token for the user who logs in at its provider.

    Args:
        login: The server, without a token.
        note: Called with the address and the code for the user.
        first_patience_s: How long to try to reach the server.

    Raises:
        UsageError: the server or the provider does not support this login, or refused it.
        UnreachableError: the provider does not answer.
    """
    connection = Connection(login, first_patience_s=first_patience_s, note=note)
    with contextlib.closing(connection) as server:
        provider = server.ask("GET", "/v1/login", LoginProvider)
        begin = provider.device_authorization_endpoint
        if not begin:
            raise UsageError(f"{provider.issuer} has no device flow: ask for a token instead")
        begun = _ask(begin, {"client_id": provider.client_id, "scope": provider.scope})
        where = begun.get("verification_uri_complete") or begun["verification_uri"]
        note(f"open {where} and enter {begun['user_code']}")
        id_token = _await(provider, begun)
        made = server.ask("POST", "/v1/login", LoginAnswer, body=LoginRequest(id_token))
    return made.token


def _await(provider: LoginProvider, begun: dict[str, Any]) -> str:
    pause_s = float(begun.get("interval", PAUSE_S))
    end_s = time.monotonic() + min(LONGEST_S, float(begun.get("expires_in", LONGEST_S)))
    values = {
        "grant_type": GRANT,
        "device_code": begun["device_code"],
        "client_id": provider.client_id,
    }
    while time.monotonic() < end_s:
        time.sleep(pause_s)
        answer = _ask(provider.token_endpoint, values)
        problem = answer.get("error")
        if problem is None:
            if "id_token" not in answer:
                raise UsageError(f"{provider.issuer} returned no ID token")
            return str(answer["id_token"])
        if problem == "slow_down":
            pause_s += PAUSE_S
        elif problem != "authorization_pending":
            raise UsageError(f"the login was refused: {answer.get('error_description') or problem}")
    raise UsageError("the login was not completed in time; repeat the command")


def _ask(address: str, values: dict[str, str]) -> dict[str, Any]:
    """Return a provider's JSON answer, even if it is a refusal."""
    if not address.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise UsageError(f"{address!r} is not an https:// address")
    request = urllib.request.Request(address, data=urlencode(values).encode())  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            text = answer.read(1 << 20)
    except urllib.error.HTTPError as error:
        text = error.read(1 << 20)
    except OSError as error:
        raise UnreachableError(f"{address} cannot be reached: {error}") from error
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise UnreachableError(f"{address} did not answer with JSON") from None
    return found
