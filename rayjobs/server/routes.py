"""A route that is not a method of the store, with the types of its body and its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.server import hiding
from rayjobs.server.access import Caller
from rayjobs.workspace import plain
from rayjobs.workspace.users import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from typing_extensions import TypeForm

T = TypeVar("T")
JSON = "application/json"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"


@dataclass(frozen=True)
class HandlerRoute(Generic[T]):
    """A route with its own handler. The OpenAPI document describes it from these fields.

    Attributes:
        verb, path: The method and the path of the requests.
        role: Who may send them.
        handler: Returns the value of the answer, or a whole response.
        answer: The type of the answer's value; of a stream, the type of its records.
        media: The media type of the answer. Unless it is JSON, the handler returns the response.
        body: The type of a request's JSON body, for `bodies.body_of`; `bytes`: a file; None: there
            is no body.
        headers: Additional headers of a JSON answer.
        hides_store: Sentences in the answer may name the database's address, which is removed.
    """

    verb: str
    path: str
    role: Role
    handler: Callable[[Request, Caller], Awaitable[T | Response]]
    answer: TypeForm[T]
    media: str = JSON
    body: object = None
    headers: Mapping[str, str] | None = None
    hides_store: bool = False

    async def respond(self, request: Request, caller: Caller) -> Response:
        """Answer a request."""
        found = await self.handler(request, caller)
        if isinstance(found, Response):
            return found
        values = plain.written(self.answer, found)
        if self.hides_store:
            values = hiding.texts_without_store(values)
        return JSONResponse(values, headers=self.headers)


def line(kind: TypeForm[T], record: T) -> bytes:
    """Return a record of a stream as its line."""
    return json.dumps(plain.written(kind, record)).encode() + b"\n"


def stream_of(lines: AsyncIterator[bytes] | Iterator[bytes]) -> Response:
    """Return the answer that streams lines."""
    return StreamingResponse(lines, media_type=LINES)


Routes = list[HandlerRoute[Any]]
