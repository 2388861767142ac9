"""Finds the route of a request: those without parameters by their path, the others in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send


class _Exact(BaseRoute):
    """Routes whose paths have no parameters: one look-up instead of a hundred patterns."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {(verb, one.path): one for one in routes for verb in one.methods or ()}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return a full match, or none; a wrong verb is left to the routes themselves."""
        if scope["type"] == "http" and not scope.get("root_path"):
            route = self._routes.get((scope["method"], scope["path"]))
            if route is not None:
                return Match.FULL, {"endpoint": route.endpoint, "path_params": {}, _ROUTE: route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request by the route that was found."""
        await cast(Route, scope[_ROUTE]).app(scope, receive, send)


_ROUTE = "rayjobs.route"


def in_order(routes: Iterable[Route]) -> list[BaseRoute]:
    """Return routes as Starlette tries them: exact paths, then patterns in their order.

    A path without parameters wins over a pattern that matches it too.
    """
    every = list(routes)
    exact = [one for one in every if "{" not in one.path]
    return [_Exact(exact), *(one for one in every if "{" in one.path), *exact]
