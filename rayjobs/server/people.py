"""Routes of tokens and of the audit: users see and revoke their own tokens, and admins all."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.core.clock import to_text
from rayjobs.remote import plain
from rayjobs.server.access import Caller, Handler, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.workers import in_thread
from rayjobs.workspace import audit, users
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role, Token

PAGE = 500
NOT_KEPT = {"Cache-Control": "no-store"}  # the answer contains a secret


def routes(workspace: OpenWorkspace) -> list[tuple[str, str, Role, Handler]]:
    """Return the routes."""
    store = workspace.store

    async def listed(_request: Request, caller: Caller) -> Response:
        found = await in_thread(users.all_tokens, store)
        sees_all = caller.token.role >= Role.ADMIN
        return JSONResponse([_row(one) for one in found if sees_all or one.user == caller.user])

    async def add(request: Request, caller: Caller) -> Response:
        body = await body_of(request)
        user, role, days = body.get("user"), body.get("role", "submitter"), body.get("days", 90)
        expected = "give `user` and `role` as texts, and `days` as a number"
        if not isinstance(user, str) or not isinstance(role, str):
            raise Refusal(400, expected)
        try:
            days = plain.decoder(float)(days)
        except plain.PlainFormError as error:
            raise Refusal(400, f"{expected}: {error}") from None

        def call() -> tuple[Token, str]:
            return users.add(store, user, users.role_of(role), by=caller.user, days=days)

        made, text = await in_thread(call)
        request.state.object = f"{made.id} user={user} role={role}"
        return JSONResponse({**_row(made), "secret": text}, headers=NOT_KEPT)

    async def revoke(request: Request, caller: Caller) -> Response:
        request.state.is_change = True  # viewers may also revoke their own tokens
        only_of = None if caller.token.role >= Role.ADMIN else caller.user
        name = str(request.path_params["id"])

        def call() -> bool:
            return users.revoke_token(store, name, by=caller.user, only_of=only_of)

        return JSONResponse(await in_thread(call))

    async def changes(request: Request, _caller: Caller) -> Response:
        size = request.query_params.get("page_size", str(PAGE))
        if not size.isascii() or not size.isdecimal() or not 1 <= int(size[:9]) <= PAGE:
            raise Refusal(400, f"page_size is a whole number from 1 to {PAGE}")
        cursor = request.query_params.get("cursor", "")
        rows, following = await in_thread(audit.page, store, int(size), cursor)
        return JSONResponse({"items": rows, "next": following})

    return [
        ("GET", "/v1/tokens", Role.VIEWER, listed),
        ("POST", "/v1/tokens", Role.ADMIN, add),
        ("DELETE", "/v1/tokens/{id}", Role.VIEWER, revoke),
        ("GET", "/v1/audit", Role.ADMIN, changes),
    ]


def _row(one: Token) -> dict[str, Any]:
    return {
        "id": one.id,
        "user": one.user,
        "role": one.role.name.lower(),
        "created_at": to_text(one.created_at),
        "created_by": one.created_by,
        "expires_at": to_text(one.expires_at),
        "revoked_at": None if one.revoked_at is None else to_text(one.revoked_at),
    }
