"""Routes of tokens and of the audit: users see and revoke their own tokens, and admins all."""

from __future__ import annotations

from starlette.requests import Request

from rayjobs.server.access import Caller
from rayjobs.server.bodies import body_of
from rayjobs.server.pages import size_of
from rayjobs.server.routes import HandlerRoute, Routes
from rayjobs.server.workers import in_thread
from rayjobs.workspace import audit, users
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import AuditPage, NewToken, NewTokenRow, TokenRow
from rayjobs.workspace.users import Role, Token

PAGE = 500
NOT_KEPT = {"Cache-Control": "no-store"}  # the answer contains a secret


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    store = workspace.store

    async def listed(_request: Request, caller: Caller) -> list[TokenRow]:
        found = await in_thread(users.all_tokens, store)
        sees_all = caller.token.role >= Role.ADMIN
        return [TokenRow.of(one) for one in found if sees_all or one.user == caller.user]

    async def add(request: Request, caller: Caller) -> NewTokenRow:
        asked = await body_of(request, NewToken)

        def call() -> tuple[Token, str]:
            role = users.role_of(asked.role)
            return users.add(store, asked.user, role, by=caller.user, days=asked.days)

        made, text = await in_thread(call)
        request.state.object = f"{made.id} user={asked.user} role={asked.role}"
        return NewTokenRow.with_secret(made, text)

    async def revoke(request: Request, caller: Caller) -> bool:
        request.state.is_change = True  # viewers may also revoke their own tokens
        only_of = None if caller.token.role >= Role.ADMIN else caller.user
        name = str(request.path_params["id"])

        def call() -> bool:
            return users.revoke_token(store, name, by=caller.user, only_of=only_of)

        return await in_thread(call)

    async def changes(request: Request, _caller: Caller) -> AuditPage:
        size = size_of(request.query_params.get("page_size", str(PAGE)), PAGE)
        cursor = request.query_params.get("cursor", "")
        rows, following = await in_thread(audit.page, store, size, cursor)
        return AuditPage(items=list(rows), next=following)

    viewer, admin = Role.VIEWER, Role.ADMIN
    return [
        HandlerRoute("GET", "/v1/tokens", viewer, listed, list[TokenRow]),
        HandlerRoute(
            "POST", "/v1/tokens", admin, add, NewTokenRow, body=NewToken, headers=NOT_KEPT
        ),
        HandlerRoute("DELETE", "/v1/tokens/{id}", viewer, revoke, bool),
        HandlerRoute("GET", "/v1/audit", admin, changes, AuditPage),
    ]
