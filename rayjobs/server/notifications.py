"""Routes of notifications: users change their own, and an admin everyone's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayjobs.server import hiding
from rayjobs.server.access import Caller, Handler, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.workers import in_thread
from rayjobs.workspace import notifications
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.notifications import Subscription
from rayjobs.workspace.users import Role


def routes(workspace: OpenWorkspace) -> list[tuple[str, str, Role, Handler]]:
    """Return the routes."""
    store = workspace.store

    async def listed(_request: Request, caller: Caller) -> Response:
        found = await in_thread(notifications.subscriptions, store)
        sees_all = caller.token.role >= Role.ADMIN
        shown = [one for one in found if sees_all or one.user in (None, caller.user)]
        return JSONResponse([_row(one, caller) for one in shown])

    async def add(request: Request, caller: Caller) -> Response:
        body = await body_of(request)
        receiver, everyone = body.get("receiver"), body.get("everyone", False)
        if not isinstance(receiver, str) or not isinstance(everyone, bool):
            raise Refusal(400, "give `receiver`, a text, and `everyone`, true or false")
        if everyone and caller.token.role < Role.ADMIN:
            raise Refusal(403, "only an admin may add a receiver for everyone's jobs")

        def call() -> Subscription:
            user = None if everyone else caller.user
            return notifications.subscribe(store, receiver, user=user, by=caller.user)

        made = await in_thread(call)
        request.state.object = f"{made.id} {hiding.shown(made.receiver)}"
        return JSONResponse(_row(made, caller))

    async def remove(request: Request, caller: Caller) -> Response:
        only_of = None if caller.token.role >= Role.ADMIN else caller.user
        name = str(request.path_params["id"])
        await in_thread(notifications.unsubscribe, store, name, only_of=only_of)
        return JSONResponse(True)

    return [
        ("GET", "/v1/notifications", Role.VIEWER, listed),
        ("POST", "/v1/notifications", Role.SUBMITTER, add),
        ("DELETE", "/v1/notifications/{id}", Role.SUBMITTER, remove),
    ]


def _row(one: Subscription, caller: Caller) -> dict[str, Any]:
    is_owner = caller.token.role >= Role.ADMIN or caller.user == one.user
    receiver = one.receiver if is_owner else hiding.shown(one.receiver)
    return {"id": one.id, "user": one.user, "receiver": receiver, "by": one.by}
