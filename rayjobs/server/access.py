"""Who may call: tokens, roles, and a bound on how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.store.base import Store
from rayjobs.workspace import users
from rayjobs.workspace.users import Role, Token

KNOWN_FOR_S = 1.0  # a revoked token is refused at the latest after this
PER_SECOND = 200.0  # requests of one token, over time
BURST = 400.0
Handler = Callable[[Request, "Caller"], Awaitable[Response]]
"""Answers a request of an admitted caller."""


class Refusal(Exception):
    """A request that is not served, with its HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

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
        self._buckets: dict[str, Bucket] = {}

    def admit(self, header: str, role: Role) -> Caller:
        """Return the caller.

        Raises:
            Refusal: the token is not valid (401), its role is too low (403), or it sends too many
                requests (429).
        """
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer" or not text:
            raise Refusal(401, "give a token: `rayjobs login`", {"WWW-Authenticate": "Bearer"})
        token = self._token(text.strip())
        problem = "this token is not known here" if token is None else token.problem(_now())
        if token is None or problem:
            raise Refusal(401, f"{problem}: `rayjobs login`", {"WWW-Authenticate": "Bearer"})
        if token.role < role:
            raise Refusal(
                403,
                f"{token.user} is a {token.role.name.lower()}; this needs the role "
                f"{role.name.lower()}",
            )
        if not self._has_left(token.id):
            raise Refusal(429, "too many requests", {"Retry-After": "1"})
        return Caller(token)

    def _token(self, text: str) -> Token | None:
        now_s = time.monotonic()
        with self._lock:
            found = self._known.get(text)
        if found is not None and now_s - found[0] < KNOWN_FOR_S:
            return found[1]
        token = users.find(self._store, text)
        if token is not None:
            with self._lock:
                if len(self._known) > 10_000:
                    self._known.clear()
                self._known[text] = (now_s, token)
        return token

    def _has_left(self, token_id: str) -> bool:
        with self._lock:
            bucket = self._buckets.setdefault(token_id, Bucket(PER_SECOND, BURST))
        return bucket.take()


class Bucket:
    """Bounds how often something is done: so often a second over time, and a burst. Thread-safe."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at_s = time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether it may be done once more now."""
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
    """Return the answer that says an error; its kind is the class that clients raise."""
    body = {"error": {"kind": kind, "message": message}}
    return JSONResponse(body, status_code=status, headers=headers)


def _now() -> datetime:
    return datetime.now(UTC)
