"""Access control: tokens, roles, and rate limits."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.core.errors import RayjobsError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.server.workers import with_token
from rayjobs.store.base import Store
from rayjobs.workspace import plain, users
from rayjobs.workspace.http_messages import ErrorFacts
from rayjobs.workspace.users import Role, Token

KNOWN_FOR_S = 1.0  # a revoked token is refused after this time at the latest
PER_SECOND = 200.0  # sustained requests of one token
BURST = 400.0
FAILED_PER_SECOND = 20.0  # unknown tokens of one address: each costs a read of the store
FAILED_BURST = 200.0
MOST_KNOWN = 10_000
Handler = Callable[[Request, "Caller"], Awaitable[Response]]
"""A function that answers a request of an admitted caller."""


class Refusal(Exception):
    """The refusal of a request, with its HTTP status, and its sender if the token is known."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        caller: Caller | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.caller = caller


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    token: Token

    @property
    def user(self) -> str:
        """The user's name."""
        return self.token.user


class Guard:
    """Admits requests by their token. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Token]] = {}
        self._buckets: dict[str, RateLimit] = {}
        self._failures: dict[str, RateLimit] = {}  # by the client's address

    def known(self, header: str, role: Role) -> Caller | None:
        """Return the caller without reading the store; None: call `admit`.

        Raises:
            Refusal: see `admit`.
        """
        token = self._fresh(_text_of(header))
        return None if token is None else self._counted(token, role)

    def admit(self, header: str, role: Role, client: str = "") -> Caller:
        """Return the caller.

        Args:
            client: The address that sends the request.

        Raises:
            Refusal: the token is invalid (401), its role is too low (403), it sends too many
                requests (429), or the address sends too many unknown tokens.
        """
        text = _text_of(header)
        token = self._fresh(text)
        if token is None:
            failures = self._bucket(self._failures, client, FAILED_PER_SECOND, FAILED_BURST)
            if not failures.has():
                raise Refusal(429, "too many unknown tokens", {"Retry-After": "1"})
            token = self._found(text)
            if token is None:
                failures.take()
        return self._counted(token, role)

    async def check(self, header: str, role: Role) -> None:
        """Check a long-running request, without counting it; see `admit`."""
        text = _text_of(header)
        token = self._fresh(text) or await with_token(self._found, text)
        _check_role(_valid(token), role)

    def _counted(self, token: Token | None, role: Role) -> Caller:
        known = _valid(token)
        if not self._bucket(self._buckets, known.id, PER_SECOND, BURST).take():
            raise Refusal(429, "too many requests", {"Retry-After": "1"}, caller=Caller(known))
        _check_role(known, role)  # counted first, since the audit records each refused change
        return Caller(known)

    def _fresh(self, text: str) -> Token | None:
        with self._lock:
            found = self._known.get(text)
        if found is not None and time.monotonic() - found[0] < KNOWN_FOR_S:
            return found[1]
        return None

    def _found(self, text: str) -> Token | None:
        now_s = time.monotonic()
        token = users.find(self._store, text)
        if token is not None:
            with self._lock:
                if len(self._known) > MOST_KNOWN:
                    self._known.clear()
                self._known[text] = (now_s, token)
        return token

    def _bucket(
        self, buckets: dict[str, RateLimit], name: str, per_second: float, burst: float
    ) -> RateLimit:
        with self._lock:
            if name not in buckets and len(buckets) > MOST_KNOWN:
                buckets.clear()
            return buckets.setdefault(name, RateLimit(per_second, burst))


def _text_of(header: str) -> str:
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise Refusal(
            401, "the request has no token: `rayjobs login`", {"WWW-Authenticate": "Bearer"}
        )
    return text.strip()


def _valid(token: Token | None) -> Token:
    problem = "the server does not know this token" if token is None else token.problem(_now())
    if token is None or problem:
        caller = None if token is None else Caller(token)
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(
            401, f"{problem}: log in with another one (`rayjobs login`)", headers, caller=caller
        )
    return token


def _check_role(token: Token, role: Role) -> None:
    if token.role < role:
        raise Refusal(
            403,
            f"{token.user} has the role {token.role.name.lower()}; this needs the role "
            f"{role.name.lower()}",
            caller=Caller(token),
        )


async def while_admitted(request: Request, records: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a stream until its token is no longer valid."""
    looked_s = time.monotonic()
    async for record in records:
        if time.monotonic() - looked_s >= KNOWN_FOR_S:
            try:
                await request.state.check()
            except (Refusal, RayjobsError):
                return  # the client retries, and gets the reason
            looked_s = time.monotonic()
        yield record


class RateLimit:
    """A rate limiter: a number of uses per second over time, and a burst. Thread-safe."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at_s = time.monotonic()
        self._lock = threading.Lock()

    def has(self) -> bool:
        """Whether one more use is allowed now, without counting it."""
        with self._lock:
            now_s = time.monotonic()
            return self._left + (now_s - self._at_s) * self._per_second >= 1

    def take(self) -> bool:
        """Count one more use, and return whether it is allowed."""
        with self._lock:
            now_s = time.monotonic()
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_second)
            self._at_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True


def error_answer(
    status: int, kind: str, message: str, headers: dict[str, str] | None = None
) -> Response:
    """Return the answer for an error; its kind is the class that clients raise."""
    return answer_of(status, ErrorFacts(kind, message), headers)


def answer_of(status: int, facts: ErrorFacts, headers: dict[str, str] | None = None) -> Response:
    """Return the answer for an error."""
    values = plain.written(ErrorFacts, facts)
    body = {"error": {name: one for name, one in values.items() if one is not None}}
    return JSONResponse(body, status_code=status, headers=headers)


def _now() -> datetime:
    return datetime.now(UTC)
