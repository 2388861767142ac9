"""The connection to a workspace's server: requests over HTTP, with retries.

Standard library only. It imports http and ssl, so only commands that reach a server import it (see
`rayjobs.workspace.server_choice`).
"""

from __future__ import annotations

import http.client
import itertools
import json
import logging
import os
import random
import socket
import ssl
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from rayjobs.core import errors
from rayjobs.core.errors import NotFoundError, RayjobsError, UnreachableError, UsageError
from rayjobs.workspace import plain
from rayjobs.workspace.http_messages import ErrorAnswer, StreamEnd, WorkspaceFacts
from rayjobs.workspace.logins import Login

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
CERTIFICATES = "RAYJOBS_CA_FILE"
ANSWER_S = 120.0
CONNECT_S = 5.0
PATIENCE_S = 120.0  # for a server that has already answered this process
FIRST_PATIENCE_S = 20.0
NOTED_S = 1.0
MOST_QUOTED = 120  # characters of a server's message in a note
AGAIN_S = 0.5
AWAY_S = 120.0  # how long a stream tries to reconnect before it reports the error
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_BUSY = (429, 503)  # the server did nothing, and asks for a retry
_LOST = (502, 504)  # a proxy in front of the server lost the answer
log = logging.getLogger(__name__)


class Connection:
    """Sends requests to a server. Thread-safe, but not fork-safe.

    An idempotent request is repeated with growing pauses while the server cannot be reached or is
    busy. If the login names several servers, each retry goes to the next one.
    """

    def __init__(
        self,
        login: Login,
        *,
        answer_s: float = ANSWER_S,
        first_patience_s: float | None = None,
        note: Callable[[str], None] = log.info,
    ) -> None:
        """Make a connection to the server of `login`; nothing is sent yet.

        Args:
            login: The server and the token for it.
            answer_s: The longest time that the server may be silent.
            first_patience_s: How long to try to reach the server the first time; None means 20 s,
                for a server that restarts.
            note: Called with messages for the user during a long request.
        """
        self._answer_s = answer_s
        self._first_patience_s = first_patience_s
        self._note = note
        self._servers = [one.strip().rstrip("/") for one in login.address.split(",")]
        for one in self._servers:
            parts = urlsplit(one)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UsageError(f"{one!r} is not the address of a server; write https://HOST:PORT")
        self._login = login
        self._number, self._has_answered = 0, False
        self._workspace: WorkspaceFacts | None = None
        # Idle connections, each with the number of its server; then those whose answer is unread.
        self._free: list[tuple[int, http.client.HTTPConnection]] = []
        self._read: list[http.client.HTTPConnection] = []

    def workspace(self) -> WorkspaceFacts:
        """Return the facts of the server's workspace; requested once."""
        if self._workspace is None:
            self._workspace = self.ask("GET", "/v1/workspace", WorkspaceFacts)
        return self._workspace

    @property
    def address(self) -> str:
        """The server that gets the next request."""
        return self._servers[self._number]

    @property
    def ca_file(self) -> str:
        """The file of a private certificate authority, or an empty string."""
        return os.environ.get(CERTIFICATES) or self._login.ca_file

    def copy(self, *, answer_s: float = ANSWER_S) -> Connection:
        """Return another connection to the same server.

        Args:
            answer_s: The longest time that the server may be silent.
        """
        made = Connection(
            self._login,
            answer_s=answer_s,
            first_patience_s=self._first_patience_s,
            note=self._note,
        )
        made._number, made._has_answered = self._number, self._has_answered
        return made

    def close(self) -> None:
        """Close the connections; the next request opens a new one."""
        for one in self._read:
            one.close()
        self._read.clear()
        self._close_free()

    def ask(
        self,
        verb: str,
        path: str,
        kind: TypeForm[T],
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        repeats: bool | None = None,
    ) -> T:
        """Send a request; return its answer, such as a class of `rayjobs.workspace.http_messages`.

        Args:
            kind: The type of the answer.
            body: A record, a message, or the bytes of a file; None: no body.
            repeats: See `json`.

        Raises:
            RayjobsError: the error that the server returned.
            UnreachableError: the server cannot be reached, or its answer cannot be read.
        """
        is_plain = body is None or isinstance(body, bytes)
        sent = body if is_plain else plain.written(type(body), body)
        found = self.json(verb, path, query=query, body=sent, repeats=repeats)
        return self.read_answer(kind, found, f"{verb} {path}")

    def read_answer(self, kind: TypeForm[T], values: object, request: str) -> T:
        """Return the value of an answer's JSON.

        Args:
            request: The request that was answered, for the error.

        Raises:
            UnreachableError: the answer has another form.
        """
        try:
            return plain.read(kind, values)
        except plain.PlainFormError as error:
            raise UnreachableError(
                f"the answer of {self.address} to {request} cannot be read ({error}): install the "
                f"same version of rayjobs here and on the server"
            ) from None

    def json(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        repeats: bool | None = None,
    ) -> Any:
        """Return the answer's JSON, for a caller that reads it by the types of an operation.

        Args:
            body: JSON data, or bytes.
            repeats: Whether the request may be sent again if its answer was lost; None: as HTTP
                defines it for the verb.

        Raises:
            RayjobsError: the error that the server returned.
            UnreachableError: the server cannot be reached, or it is not a rayjobs server.
        """
        is_file = isinstance(body, bytes)
        headers = {"Content-Type": "application/octet-stream"} if is_file else None
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        text = self._send(
            _whole, verb, path, query=query, data=data, headers=headers, repeats=repeats
        )
        try:
            return json.loads(text or b"null")
        except ValueError:
            raise UnreachableError(
                f"{self.address} did not answer {verb} {path} with JSON: it is not a rayjobs "
                f"server, or a proxy in front of it sent the answer"
            ) from None

    def send(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **kwargs: Any
    ) -> http.client.HTTPResponse:
        """Return the answer to a request, with its body unread; see `json`.

        Retries end when the answer begins. A caller that reads the body sees a lost connection as
        an error, and calls `close` at the end.
        """
        return cast(http.client.HTTPResponse, self._send(None, verb, path, query=query, **kwargs))

    def whole(
        self, verb: str, path: str, *, query: Mapping[str, str] | None = None, **kwargs: Any
    ) -> bytes:
        """Return the body of the answer to a request; see `json`."""
        return cast(bytes, self._send(_whole, verb, path, query=query, **kwargs))

    def _send(
        self,
        take: Callable[[http.client.HTTPResponse], Any] | None,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeats: bool | None = None,
    ) -> Any:
        may_repeat = verb in ("GET", "HEAD", "PUT", "DELETE") if repeats is None else repeats
        refusal: Exception | None = None
        tries = _Tries(self._servers, self._number, self._patience_s, self._note)
        for number in tries:
            self._number = number
            was_sent, connection = False, None
            try:
                # The server may have closed an idle connection.
                connection = self._connected(number, is_new=not may_repeat)
                was_sent = True
                answer = self._exchange(connection, verb, path, query, data, headers)
                self._has_answered = True
                return self._taken(take, answer, number, connection)
            except _BusyError as busy:
                _drop(connection)
                tries.failure, refusal = str(busy), busy.error
            except ssl.SSLCertVerificationError as error:
                _drop(connection)
                raise UnreachableError(
                    f"the certificate of {self.address} is not trusted here "
                    f"({error.verify_message}); set {CERTIFICATES} to the file of its authority"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                _drop(connection)
                self._close_free()
                tries.failure, refusal = _cause(error), None
                if not self._has_answered and (why := self._why_wrong(number, error)):
                    tries.hopeless.add(number)
                    tries.failure = why
                elif was_sent and not may_repeat:
                    raise UnreachableError(
                        f"{self.address} did not answer {verb} {path} ({tries.failure}); the "
                        f"request may have succeeded anyway: check before you repeat it"
                    ) from error
            except RayjobsError:
                if connection is not None:
                    self._free.append((number, connection))  # its answer has been read
                raise
            except BaseException:
                _drop(connection)
                raise
        several = len(self._servers) > 1
        what = f"servers {' and '.join(self._servers)}" if several else f"server {self.address}"
        raise refusal or UnreachableError(f"the {what} cannot be reached: {tries.failure}")

    def _patience_s(self) -> float:
        # A running program waits for a server that restarts; a first command soon reports that
        # there is no server.
        if self._has_answered:
            return PATIENCE_S
        return FIRST_PATIENCE_S if self._first_patience_s is None else self._first_patience_s

    def _taken(
        self,
        take: Callable[[http.client.HTTPResponse], Any] | None,
        answer: http.client.HTTPResponse,
        number: int,
        connection: http.client.HTTPConnection,
    ) -> Any:
        """Return `take(answer)`; without `take`, the answer, whose body the caller reads."""
        if take is None:
            self._read.append(connection)
            return answer
        taken = take(answer)
        self._free.append((number, connection))
        return taken

    def _why_wrong(self, number: int, error: Exception) -> str:
        """Return why retries cannot help until the address is changed; empty if they can."""
        parts = urlsplit(self._servers[number])
        if isinstance(error, socket.gaierror):
            # The resolver has retried itself. (A program that has had an answer keeps retrying.)
            return f"the name {parts.hostname!r} cannot be resolved ({error.strerror})"
        from rayjobs.workspace import wrong_scheme

        return wrong_scheme.sentence(parts, error)

    def _close_free(self) -> None:
        while self._free:
            try:
                self._free.pop()[1].close()
            except IndexError:  # another thread has taken the last one
                return

    def _connected(self, number: int, *, is_new: bool) -> http.client.HTTPConnection:
        while self._free and not is_new:
            try:
                known, found = self._free.pop()
            except IndexError:
                break
            if known == number:
                return found
            found.close()
        parts = urlsplit(self._servers[number])
        return connected(parts, connect_s=CONNECT_S, answer_s=self._answer_s, ca_file=self.ca_file)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> http.client.HTTPResponse:
        where = urlsplit(self.address).path.rstrip("/") + quote(path, safe="/:@")
        if query:
            where += f"?{urlencode(query)}"
        sent = {"Authorization": f"Bearer {self._login.token}", **(headers or {})}
        if data is not None and "Content-Type" not in sent:
            sent["Content-Type"] = "application/json"
        connection.request(verb, where, body=data, headers=sent)
        answer = connection.getresponse()
        if 200 <= answer.status < 300:
            return answer
        text = answer.read()
        if answer.status in _BUSY:
            error = _error_sent(answer.status, text)
            if error is not None and "Retry-After" not in answer.headers:
                raise error  # the request may have had an effect, and must not have it twice
            failure = f"it answered {answer.status} {answer.reason}"
            if error is not None:
                failure += f": {textwrap.shorten(str(error), MOST_QUOTED, placeholder=' …')}"
            raise _BusyError(failure, error)
        if answer.status in _LOST:
            raise http.client.HTTPException(f"it answered {answer.status} {answer.reason}")
        if answer.status < 400:
            raise UnreachableError(
                f"{self.address} answered {answer.status} and redirects to "
                f"{answer.headers.get('Location', 'no address')}: log in at the address of the "
                f"server itself, with `rayjobs login URL`"
            )
        found = error_of(answer.status, text, self.address)
        if answer.status == 400 and type(found) is UnreachableError:  # a proxy's own answer
            from rayjobs.workspace import wrong_scheme

            failed = http.client.HTTPException()
            if why := wrong_scheme.sentence(urlsplit(self.address), failed):
                raise UnreachableError(why)
        raise found

    def lines(
        self, path: str, kind: TypeForm[T], *, query: Mapping[str, str]
    ) -> Iterator[T | StreamEnd]:
        """Yield the records of a stream of JSON lines; ends early if the server stops.

        Args:
            kind: The type of the records.

        Raises:
            RayjobsError: the error that the server returned.
            UnreachableError: a record cannot be read.
            OSError, http.client.HTTPException: the connection was lost.
        """
        answer = self.send("GET", path, query=query)
        try:
            while line := answer.readline():
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line)
                values = json.loads(line)
                if isinstance(values, Mapping) and values.get("is_end"):
                    yield StreamEnd(is_end=True)
                else:
                    yield self.read_answer(kind, values, f"GET {path}")
        finally:
            self.close()

    def stream(
        self, path: str, kind: TypeForm[T], query: Callable[[], Mapping[str, str]]
    ) -> Iterator[T | None]:
        """Yield the records of a stream to its end, reconnecting after a lost connection.

        Args:
            kind: The type of the records.
            query: Called at each start; its result says where the stream continues.

        Yields None whenever the connection was lost.

        Raises:
            RayjobsError: the error that the server returned, or nothing arrived for two minutes.
            UnreachableError: a record cannot be read.
        """
        since_s = time.monotonic()
        while True:
            lost: UnreachableError
            try:
                for record in self.lines(path, kind, query=query()):
                    since_s = time.monotonic()
                    if isinstance(record, StreamEnd):
                        return
                    yield record
                lost = UnreachableError(
                    f"{path} of {self.address} ends before any data arrives; look at the log of "
                    f"the server, and of a proxy in front of it"
                )
            except (OSError, ValueError, http.client.HTTPException) as error:
                lost = UnreachableError(
                    f"{path} of {self.address} breaks off before any data arrives: {error}"
                )
            except (errors.StoreUnreachableError, errors.StoreBusyError) as error:
                lost = error
            if time.monotonic() - since_s > AWAY_S:
                raise lost
            yield None
            time.sleep(AGAIN_S)


class _Tries:
    """Yields the number of each server to try in turn, with pauses between the rounds.

    Ends when each was tried and the time is up, or when all addresses are wrong.

    Attributes:
        failure: Why the last try failed.
        hopeless: Servers whose address is wrong.
    """

    def __init__(
        self,
        servers: Sequence[str],
        first: int,
        limit_s: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self.failure = ""
        self._note = note
        self.hopeless: set[int] = set()
        self._servers, self._number, self._limit_s = servers, first, limit_s

    def __iter__(self) -> Iterator[int]:
        count, began_s, pause_s = len(self._servers), time.monotonic(), FIRST_PAUSE_S
        is_noted = False
        yield self._number
        for attempt in itertools.count(1):
            waited_s = time.monotonic() - began_s
            if len(self.hopeless) == count or (attempt >= count and waited_s > self._limit_s()):
                return
            if not is_noted and waited_s > NOTED_S:
                self._note(f"waiting for {self._servers[self._number]}: {self.failure}")
                is_noted = True
            self._number = (self._number + 1) % count
            if attempt % count == 0:
                time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            yield self._number


def _whole(answer: http.client.HTTPResponse) -> bytes:
    return answer.read()


def _cause(error: Exception) -> str:
    """Return why a request failed, for people: without the errno."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error) or type(error).__name__


def connected(
    parts: SplitResult, *, connect_s: float, answer_s: float, ca_file: str = ""
) -> http.client.HTTPConnection:
    """Return an open connection to a server.

    Args:
        ca_file: The file of a private certificate authority, or an empty string.

    Raises:
        OSError: it cannot be reached.
        UsageError: the file has no certificates, or cannot be read.
    """
    host, port = str(parts.hostname), parts.port
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca_file or None)
        except OSError as error:  # fault 204: a file of certificates that cannot be used
            why = "it has no PEM certificates" if isinstance(error, ssl.SSLError) else _cause(error)
            raise UsageError(
                f"the certificates in {ca_file} cannot be used: {why}; {CERTIFICATES}, or the last "
                f"login with it, names this file"
            ) from None
        made: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port or 443, timeout=connect_s, context=context
        )
    else:
        made = http.client.HTTPConnection(host, port or 80, timeout=connect_s)
    made.connect()
    made.sock.settimeout(answer_s)
    return made


def _drop(connection: http.client.HTTPConnection | None) -> None:
    """Close a connection whose answer was not fully read."""
    if connection is not None:
        connection.close()


class _BusyError(Exception):
    """The server asks for a retry; `error` is the reason if the server itself gave one."""

    def __init__(self, message: str, error: Exception | None) -> None:
        super().__init__(message)
        self.error = error


def _error_sent(status: int, body: bytes) -> Exception | None:
    """Return the storage error that a busy server reports; None if it only asks to wait."""
    from rayjobs.datastore.errors import DatastoreError

    found = error_of(status, body, "")
    return found if isinstance(found, errors.StoreError | DatastoreError) else None


def error_of(status: int, body: bytes, address: str) -> Exception:
    """Return the error for a server's answer."""
    try:
        sent = plain.read(ErrorAnswer, json.loads(body)).error
    except ValueError:  # for example the answer of a proxy in front of the server
        if status == 404:
            return NotFoundError(f"{address} is not a rayjobs server of this version")
        return UnreachableError(f"{address} answered {status}")
    kind, message = sent.kind, sent.message
    found = getattr(errors, kind, None)
    if found is errors.SpecError:
        return errors.SpecError(message, problems=sent.problems or [])
    if isinstance(found, type) and issubclass(found, RayjobsError):
        values = {} if sent.matches is None else {"matches": tuple(sent.matches)}
        return found(message, **values)
    from rayjobs.datastore import errors as data_errors

    found = getattr(data_errors, kind, None)
    if isinstance(found, type) and issubclass(found, data_errors.DatastoreError):
        return found(message)
    return UnreachableError(f"{address} answered {status}: {message}")


def upload(
    server: Connection,
    stream: BinaryIO,
    size: int,
    *,
    name: str,
    chunk: int,
    count: Callable[[int], None] = lambda _bytes: None,
) -> None:
    """Send a file's first `size` bytes as the upload `name`; resumes an interrupted upload.

    Args:
        count: Called with the number of bytes that the server has received since the last call.
    """
    offset = server.ask("PUT", f"/v1/uploads/{name}", int)
    count(offset)
    while offset < size:
        stream.seek(offset)
        data = stream.read(min(chunk, size - offset))
        if not data:
            raise OSError("the file became shorter while it was read")
        # The offset makes a repeat safe: the server does not write bytes twice.
        sent, at = offset, {"offset": str(offset)}
        offset = server.ask("PATCH", f"/v1/uploads/{name}", int, query=at, body=data, repeats=True)
        count(offset - sent)
