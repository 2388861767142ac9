"""Finds the route of a request: by path for routes without parameters, otherwise in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send


class _Exact(BaseRoute):
    """Routes without path parameters: one look-up instead of a hundred patterns."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = {(verb, one.path): one for one in routes for verb in one.methods or ()}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return a full match or none; the routes themselves handle a wrong verb."""
        if scope["type"] == "http" and not scope.get("root_path"):
            route = self._routes.get((scope["method"], scope["path"]))
            if route is not None:
                return Match.FULL, {"endpoint": route.endpoint, "path_params": {}, _ROUTE: route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request with the matched route."""
        await cast(Route, scope[_ROUTE]).app(scope, receive, send)


_ROUTE = "rayjobs.route"


def in_order(routes: Iterable[Route]) -> list[BaseRoute]:
    """Return routes in Starlette's order: exact paths, then patterns in their order.

    A path without parameters takes precedence over a pattern that also matches it.
    """
    every = list(routes)
    exact = [one for one in every if "{" not in one.path]
    return [_Exact(exact), *(one for one in every if "{" in one.path), *exact]
