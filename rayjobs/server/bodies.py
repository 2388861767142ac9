"""The JSON body of a request, bounded."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from rayjobs.server.access import Refusal

MOST_BODY = 8 << 20  # files travel as uploads


async def body_of(request: Request) -> dict[str, Any]:
    """Return a request's JSON object; refuses one that is too large while it arrives.

    Raises:
        Refusal: it is too large, or not an object.
    """
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY:
            raise Refusal(413, f"a request has at most {MOST_BODY} bytes")
    values = parsed(bytes(data) or b"{}")
    if not isinstance(values, dict):
        raise Refusal(400, "the body is not a JSON object")
    return values


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
