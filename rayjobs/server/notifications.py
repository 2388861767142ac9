"""Routes of notifications: users change their own, and an admin everyone's."""

from __future__ import annotations

from starlette.requests import Request

from rayjobs.server import hiding
from rayjobs.server.access import Caller, Refusal
from rayjobs.server.bodies import body_of
from rayjobs.server.routes import HandlerRoute, Routes
from rayjobs.server.workers import in_thread
from rayjobs.workspace import notifications
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.http_messages import NewNotification, NotificationRow
from rayjobs.workspace.notifications import Subscription
from rayjobs.workspace.users import Role


def routes(workspace: OpenWorkspace) -> Routes:
    """Return the routes."""
    store = workspace.store

    async def listed(_request: Request, caller: Caller) -> list[NotificationRow]:
        found = await in_thread(notifications.subscriptions, store)
        sees_all = caller.token.role >= Role.ADMIN
        shown = [one for one in found if sees_all or one.user in (None, caller.user)]
        return [_row(one, caller) for one in shown]

    async def add(request: Request, caller: Caller) -> NotificationRow:
        asked = await body_of(request, NewNotification)
        if asked.everyone and caller.token.role < Role.ADMIN:
            raise Refusal(403, "only an admin may add a receiver for everyone's jobs")

        def call() -> Subscription:
            user = None if asked.everyone else caller.user
            return notifications.subscribe(store, asked.receiver, user=user, by=caller.user)

        made = await in_thread(call)
        request.state.object = f"{made.id} {hiding.shown(made.receiver)}"
        return _row(made, caller)

    async def remove(request: Request, caller: Caller) -> bool:
        only_of = None if caller.token.role >= Role.ADMIN else caller.user
        name = str(request.path_params["id"])
        await in_thread(notifications.unsubscribe, store, name, only_of=only_of)
        return True

    path, submitter = "/v1/notifications", Role.SUBMITTER
    return [
        HandlerRoute("GET", path, Role.VIEWER, listed, list[NotificationRow]),
        HandlerRoute("POST", path, submitter, add, NotificationRow, body=NewNotification),
        HandlerRoute("DELETE", f"{path}/{{id}}", submitter, remove, bool),
    ]


def _row(one: Subscription, caller: Caller) -> NotificationRow:
    is_owner = caller.token.role >= Role.ADMIN or caller.user == one.user
    receiver = one.receiver if is_owner else hiding.shown(one.receiver)
    return NotificationRow.of(one, receiver=receiver)
