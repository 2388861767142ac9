"""Routes of OpenID Connect logins, which need no token of this server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.core.errors import StoreError, UnreachableError
from rayjobs.core.store_address import without_address
from rayjobs.server.access import RateLimit, Refusal, error_answer
from rayjobs.server.audit import Audit
from rayjobs.server.bodies import body_of
from rayjobs.server.lines import Lines
from rayjobs.server.workers import with_target
from rayjobs.store.base import Store
from rayjobs.workspace import plain
from rayjobs.workspace.http_messages import LoginAnswer, LoginProvider, LoginRequest

if TYPE_CHECKING:
    from rayjobs.server.oidc import Provider

Endpoint = Callable[[Request], Awaitable[Response]]
PATH = "/v1/login"
PER_SECOND, BURST = 5.0, 20.0  # of all clients: each request costs a signature check


def routes(
    store: Store, provider: Provider, audit: Audit, lines: Lines
) -> list[tuple[str, str, Endpoint]]:
    """Return the routes."""
    bucket = RateLimit(PER_SECOND, BURST)

    async def answered(call: Callable[[], Awaitable[Response]]) -> Response:
        try:
            if not bucket.take():
                raise Refusal(429, "too many requests", {"Retry-After": "1"})
            return await call()
        except Refusal as refusal:
            return error_answer(refusal.status, "UsageError", str(refusal), refusal.headers)
        except ValueError:
            return error_answer(400, "UsageError", "the request cannot be read")
        except StoreError as error:
            lines.add(f"503 {error}")
            message = without_address(str(error))
            return error_answer(503, "StoreUnreachableError", message, {"Retry-After": "1"})
        except UnreachableError as error:
            return error_answer(500, "UnreachableError", str(error))

    async def facts(_request: Request) -> Response:
        async def call() -> Response:
            found = await with_target(provider.facts)
            return JSONResponse(plain.written(LoginProvider, found))

        return await answered(call)

    async def login(request: Request) -> Response:
        async def call() -> Response:
            asked = await body_of(request, LoginRequest)
            token, text = await with_target(provider.login, store, asked.id_token)
            client = "" if request.client is None else request.client.host
            audit.add(user=token.user, token_id=token.id, what="login", status=200, client=client)
            made = LoginAnswer(token=text, expires_at=token.expires_at.isoformat())
            return JSONResponse(plain.written(LoginAnswer, made))

        return await answered(call)

    return [("GET", PATH, facts), ("POST", PATH, login)]
