"""The connection to a server of a workspace: its address, the login, requests that retry.

Standard library only: every command of a client starts with it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from rayjobs.core import errors, paths
from rayjobs.core.errors import NotFoundError, RayjobsError, UnreachableError, UsageError
from rayjobs.core.files import write_atomic

ADDRESS = "RAYJOBS_ADDRESS"
TOKEN = "RAYJOBS_TOKEN"
CERTIFICATES = "RAYJOBS_CA_FILE"
ANSWER_S = 120.0
CONNECT_S = 20.0
TRIES = 8
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_BUSY = (429, 503)  # the server did nothing, and asks for another try
_LOST = (502, 504)  # a proxy before it lost the answer
_Taken = TypeVar("_Taken")


@dataclass(frozen=True)
class Login:
    """Where a server is, and the token for it.

    Attributes:
        address: ``https://HOST:PORT``; several servers of one workspace with commas between them.
    """

    address: str
    token: str


def login_file() -> Path:
    """Return the file that keeps the login; only its user may read it."""
    return paths.home() / "login.json"


def save_login(login: Login) -> None:
    """Keep a login for later commands."""
    path = login_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"address": login.address, "token": login.token})
    write_atomic(path, text.encode() + b"\n", mode=0o600)


def drop_login() -> bool:
    """Forget the login; False if there was none."""
    try:
        login_file().unlink()
    except FileNotFoundError:
        return False
    return True


def read_login() -> Login | None:
    """Return the kept login, or None.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        values = json.loads(login_file().read_text(encoding="utf-8"))
        return Login(str(values["address"]), str(values["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the login in {login_file()} cannot be read ({error}); run `rayjobs login` again"
        ) from error


class Connection:
    """Sends requests to a server. Not safe for threads: `copy` gives each thread its own.

    A request that may be repeated without harm is repeated with growing pauses while the server
    cannot be reached or is busy; where the login names several servers, at the next one.
    """

    def __init__(self, login: Login, *, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._servers = [one.strip().rstrip("/") for one in login.address.split(",")]
        for one in self._servers:
            parts = urlsplit(one)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UsageError(f"{one!r} is not the address of a server; write https://HOST:PORT")
        self._login = login
        self._open: http.client.HTTPConnection | None = None
        self._use(0)

    @property
    def address(self) -> str:
        """The server that gets the next request."""
        return self._servers[self._number]

    def _use(self, number: int) -> None:
        self._number = number % len(self._servers)
        self._parts = urlsplit(self.address)

    def copy(self, *, answer_s: float = ANSWER_S) -> Connection:
        """Return another connection to the same server.

        Args:
            answer_s: The longest silence of the server.
        """
        made = Connection(self._login, answer_s=answer_s)
        made._use(self._number)
        return made

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def json(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        repeats: bool | None = None,
    ) -> Any:
        """Return the answer's JSON.

        Args:
            repeats: Whether the request may be sent again if its answer was lost; None: as HTTP
                says of the verb.

        Raises:
            RayjobsError: the error that the server answered.
            UnreachableError: the server cannot be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        text = self._send(_whole, verb, path, query=query, data=data, repeats=repeats)
        return json.loads(text or b"null")

    def send(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **more: Any
    ) -> http.client.HTTPResponse:
        """Return the answer to a request, with its body unread; see `json`.

        Only the answer's beginning is tried again: who reads the body sees a connection that is
        lost meanwhile.
        """
        return self._send(_unread, verb, path, query=query, **more)

    def whole(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **more: Any
    ) -> bytes:
        """Return the body of the answer to a request; see `json`."""
        return self._send(_whole, verb, path, query=query, **more)

    def _send(
        self,
        take: Callable[[http.client.HTTPResponse], _Taken],
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool | None = None,
    ) -> _Taken:
        may_repeat = verb in ("GET", "HEAD", "PUT", "DELETE") if repeats is None else repeats
        pause_s, failure = FIRST_PAUSE_S, ""
        for attempt in range(TRIES * len(self._servers)):
            if attempt:
                self._use(self._number + 1)
            if attempt and attempt % len(self._servers) == 0:
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            was_sent = False
            try:
                if not may_repeat:
                    self.close()  # a server may have closed a connection that was idle
                connection = self._connected()
                was_sent = True
                return take(self._exchange(connection, verb, path, query, data, headers))
            except _BusyError as busy:
                self.close()
                failure = str(busy)
            except ssl.SSLCertVerificationError as error:
                self.close()
                raise UnreachableError(
                    f"the certificate of {self.address} is not trusted here "
                    f"({error.verify_message}); name the file of its authority in {CERTIFICATES}"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failure = str(error) or type(error).__name__
                if was_sent and not may_repeat:
                    raise UnreachableError(
                        f"{self.address} did not answer {verb} {path} ({failure}); it may have "
                        f"been done all the same: look before you repeat it"
                    ) from error
        what = (
            f"server {self.address}"
            if len(self._servers) == 1
            else (f"servers {' and '.join(self._servers)}")
        )
        raise UnreachableError(f"the {what} cannot be reached: {failure}")

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is not None:
            return self._open
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get(CERTIFICATES) or None)
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port or 443, timeout=CONNECT_S, context=context
            )
        else:
            made = http.client.HTTPConnection(host, port or 80, timeout=CONNECT_S)
        made.connect()
        made.sock.settimeout(self._answer_s)
        self._open = made
        return made

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        where = self._parts.path.rstrip("/") + quote(path)
        if query:
            where += f"?{urlencode(query)}"
        sent = {"Authorization": f"Bearer {self._login.token}", **(headers or {})}
        if data is not None and "Content-Type" not in sent:
            sent["Content-Type"] = "application/json"
        connection.request(verb, where, body=data, headers=sent)
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        text = answer.read()
        if answer.status in _BUSY:
            raise _BusyError(f"it answered {answer.status} {answer.reason}")
        if answer.status in _LOST:
            raise http.client.HTTPException(f"it answered {answer.status} {answer.reason}")
        raise error_of(answer.status, text, self.address)

    def lines(self, path: str, *, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the records of one stream of JSON lines; ends early when the server goes away.

        Raises:
            RayjobsError: the error that the server answered.
            OSError, http.client.HTTPException: the connection was lost.
        """
        answer = self.send("GET", path, query=query)
        try:
            while line := answer.readline():
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line)
                yield json.loads(line)
        finally:
            self.close()


def _whole(answer: http.client.HTTPResponse) -> bytes:
    return answer.read()


def _unread(answer: http.client.HTTPResponse) -> http.client.HTTPResponse:
    return answer


class _BusyError(Exception):
    """The server asks for another try."""


def error_of(status: int, body: bytes, address: str) -> Exception:
    """Return the error that a server's answer stands for."""
    try:
        sent = json.loads(body)["error"]
        kind, message = str(sent["kind"]), str(sent["message"])
    except (ValueError, KeyError, TypeError):
        if status == 404:
            return NotFoundError(f"{address} is not a server of rayjobs of this version")
        return UnreachableError(f"{address} answered {status}")
    found = getattr(errors, kind, None)
    if found is errors.SpecError:
        return errors.SpecError(
            message, problems=[errors.Problem(**one) for one in sent.get("problems", ())]
        )
    if isinstance(found, type) and issubclass(found, RayjobsError):
        values = {"matches": tuple(sent["matches"])} if "matches" in sent else {}
        return found(message, **values)
    from rayjobs.datastore import errors as data_errors

    found = getattr(data_errors, kind, None)
    if isinstance(found, type) and issubclass(found, data_errors.DatastoreError):
        return found(message)
    return UnreachableError(f"{address} answered {status}: {message}")


# -- which server this process uses ---------------------------------------------------------------
_is_allowed: bool | None = None  # None: not said; a program that opens a workspace decides
_active: Connection | None = None


def allow(allowed: bool = True) -> None:
    """Say whether this process is a client that may use a server.

    Processes of targets and servers never do: a login on their machine is not about them.
    """
    global _is_allowed, _active
    _is_allowed = allowed
    if not allowed:
        _active = None


def chosen() -> Login | None:
    """Return the server that `RAYJOBS_ADDRESS`, or else the kept login names; None: none."""
    address = os.environ.get(ADDRESS)
    kept = read_login()
    if not address:
        return None if os.environ.get("RAYJOBS_WORKSPACE") else kept
    token = os.environ.get(TOKEN)
    if not token and kept is not None and kept.address.rstrip("/") == address.rstrip("/"):
        token = kept.token
    if not token:
        raise UsageError(
            f"there is no token for {address}; run `rayjobs login {address}`, or export {TOKEN}"
        )
    return Login(address, token)


def active() -> Connection | None:
    """Return the connection of this process to its server; None: it uses a folder."""
    global _active
    if not _is_allowed:
        return None
    if _active is None and (login := chosen()) is not None:
        _active = Connection(login)
    return _active


def of_program() -> Connection | None:
    """Return the connection of a user's Python program to its server; None: it uses a folder.

    A job never uses its submitter's login: its workspace is the one that runs it.

    Raises:
        UsageError: an address is given, and no token.
    """
    global _is_allowed
    if _is_allowed is None and "RAYJOBS_RUN_ID" not in os.environ and chosen() is not None:
        _is_allowed = True
    return active()


def refuse(what: str) -> None:
    """Refuse what only the server's own machine can do.

    Raises:
        UsageError: this process uses a server.
    """
    if (server := active()) is not None:
        raise UsageError(
            f"{what} works on the server's own machine only, not through {server.address}"
        )


def upload(
    server: Connection,
    stream: BinaryIO,
    size: int,
    *,
    name: str,
    chunk: int,
    count: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Send a file's first `size` bytes as the upload `name`; goes on where the server stands.

    Args:
        count: Called with the bytes that the server has got since the last call.
    """
    offset = int(server.json("PUT", f"/v1/uploads/{name}"))
    count(offset)
    while offset < size:
        stream.seek(offset)
        data = stream.read(min(chunk, size - offset))
        if not data:
            raise OSError("the file became shorter while it was read")
        # An offset makes it safe to repeat: bytes that are there are not written twice.
        answer = server.whole(
            "PATCH",
            f"/v1/uploads/{name}",
            query={"offset": str(offset)},
            data=data,
            headers={"Content-Type": "application/octet-stream"},
            repeats=True,
        )
        sent, offset = offset, int(json.loads(answer))
        count(offset - sent)
