"""The JSON body of a request, bounded."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from rayjobs.server.access import Refusal
from rayjobs.workspace import plain

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

MOST_BODY = 8 << 20  # files are sent as uploads
MOST_QUESTION = 1 << 20  # of requests that change nothing
MOST_SMALL = 256 << 10  # of routes with a few values; read without a thread
BODY_S = 120.0


async def body_of(request: Request, kind: TypeForm[T]) -> T:
    """Return a request's body, a record or message with a few values.

    Raises:
        Refusal: it is too large, too slow, or not of this kind.
    """
    values = object_in(await bytes_of(request, MOST_SMALL, "this request"))
    try:
        return plain.read(kind, values)
    except plain.PlainFormError as error:
        raise Refusal(
            400, f"the body cannot be read ({error}); GET /v1/openapi.json describes it"
        ) from None


def object_in(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        Refusal: it is not an object.
    """
    values = parsed(data or b"{}")
    if not isinstance(values, dict):
        raise Refusal(400, "the body is not a JSON object")
    return values


async def bytes_of(request: Request, most: int, what: str) -> bytes:
    """Return a request's body, refusing it while it arrives if it is too large or too slow.

    Raises:
        Refusal: it is too large or too slow.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                data += part
                if len(data) > most:
                    raise Refusal(413, f"{what} may have at most {most} bytes")
    except TimeoutError:
        raise Refusal(408, f"{what} must arrive within {BODY_S:g} s") from None
    return bytes(data)


def parsed(text: str | bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        Refusal: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request cannot be read: {error}") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")
