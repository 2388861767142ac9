"""The OpenAPI document of the server, from the same table as its routes."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

from rayjobs.core.version import __version__
from rayjobs.remote import operations
from rayjobs.remote.operations import OPERATIONS, Operation
from rayjobs.server.routes import BYTES, JSON, LINES, HandlerRoute, Routes
from rayjobs.workspace import plain
from rayjobs.workspace.http_messages import ErrorAnswer
from rayjobs.workspace.users import Role

_ERRORS = {
    "400": "The request cannot be read.",
    "401": "No token, or an invalid, expired or revoked one.",
    "403": "The role does not permit it, or the object belongs to another user.",
    "404": "There is no such object.",
    "408": "The body arrives too slowly.",
    "409": "It is not possible now.",
    "413": "The body is too large.",
    "416": "The request has no valid range.",
    "422": "The value is invalid.",
    "429": "Too many requests.",
    "500": "The server failed, or cannot reach something that it needs.",
    "503": "The store or the storage cannot be reached.",
    "507": "The store or the storage is full.",
}
_TEXT: dict[str, Any] = {"type": "string"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_RANK = {"rank": _WHOLE, "attempt": _WHOLE}
_START = {"start": {"enum": ["1"]}}
_FILES = "/v1/datastores/{name}"
_UPLOAD = {"key": _TEXT, "digest": _TEXT}
# The arguments in the query of routes that are not store methods.
_QUERIES: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/jobs/{job_id}/log"): {"name": _TEXT, "attempt": _WHOLE, "offset": _WHOLE},
    ("GET", "/v1/jobs/{job_id}/log-times"): _RANK,
    ("GET", "/v1/jobs/{job_id}/log-stream"): {**_RANK, "offset": _WHOLE},
    ("GET", "/v1/jobs/{job_id}/event-stream"): {"after": _WHOLE},
    ("GET", "/v1/event-stream"): {"after": _WHOLE},
    ("GET", "/v1/audit"): {
        "page_size": {"type": "integer", "minimum": 1, "maximum": 500},
        "cursor": _TEXT,
    },
    ("POST", "/v1/blobs"): _UPLOAD,
    ("PATCH", "/v1/uploads/{name}"): {"offset": _WHOLE},
    ("GET", "/v1/targets/{target}"): {"ask": {"enum": ["1"]}},
    ("POST", "/v1/targets/{target}/wake"): _START,
    ("GET", f"{_FILES}/stat"): {"path": _TEXT},
    ("GET", f"{_FILES}/children"): {"path": _TEXT},
    ("GET", f"{_FILES}/walk"): {"path": _TEXT},
    ("GET", f"{_FILES}/content"): {
        "path": _TEXT,
        "etag": _TEXT,
        "digest": _TEXT,
        "size": _WHOLE,
        "offset": _WHOLE,
    },
    ("DELETE", f"{_FILES}/files"): {"path": _TEXT},
}
_SENT = ("JobFilter", "JobChanges", "NewJob", "NewSweep", "NewPipeline", "NewStep", "ModelDraft")


def document(by_hand: Routes) -> dict[str, Any]:
    """Return the document; `by_hand` are the routes that are not store methods."""
    found: dict[str, dict[str, Any]] = {}
    named: dict[str, Any] = {}
    plain.schema(ErrorAnswer, named)
    for route in by_hand:
        summary = route.path.rpartition("/v1/")[2]
        entry = _add(found, route.verb, route.path, route.role, summary=summary)
        _describe(entry, route, named)
    for one in OPERATIONS:
        doc = inspect.getdoc(operations.method_of(one.method)) or ""
        entry = _add(found, one.verb, one.path, one.role, summary=doc.split("\n")[0])
        entry["operationId"] = one.method
        _arguments(entry, one, named)
        _answer(entry, _result(one, named))
    for name in _SENT:
        named[name]["additionalProperties"] = False
        # The server sets the user.
        named[name]["required"] = [one for one in named[name]["required"] if one != "user"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "rayjobs", "version": __version__},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": named,
        },
        "security": [{"token": []}],
        "paths": found,
    }


def _bare(path: str) -> str:
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)


def _add(
    found: dict[str, dict[str, Any]], verb: str, path: str, role: Role, *, summary: str
) -> dict[str, Any]:
    bare = _bare(path)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
    entry: dict[str, Any] = {
        "summary": summary,
        "description": f"Role: {role.name.lower()}.",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", bare)
        ],
        "responses": {
            status: {"description": text, "content": error} for status, text in _ERRORS.items()
        },
    }
    found.setdefault(bare, {})[verb.lower()] = entry
    return entry


def _describe(entry: dict[str, Any], route: HandlerRoute[Any], named: dict[str, Any]) -> None:
    """Describe a route that is not a store method."""
    name = route.verb, _bare(route.path)
    entry["parameters"] += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in _QUERIES.get(name, {}).items()
    ]
    if route.body is bytes:
        entry["requestBody"] = {"required": True, "content": _content({}, BYTES)}
    elif route.body is not None:
        schema = plain.schema(route.body, named)
        entry["requestBody"] = {"required": True, "content": _content(schema)}
    # The schema of a stream is that of its lines; a file and a text have none.
    is_json = route.media in (JSON, LINES)
    schema = plain.schema(route.answer, named) if is_json else {}
    _answer(entry, schema, route.media)
    if name == ("GET", "/v1/blobs/{key}"):
        entry["responses"]["206"] = entry["responses"].pop("200")


def _content(schema: dict[str, Any], media: str = JSON) -> dict[str, Any]:
    return {media: {"schema": schema}}


def _answer(entry: dict[str, Any], schema: dict[str, Any], media: str = JSON) -> None:
    entry["responses"]["200"] = {"description": "Done.", "content": _content(schema, media)}


def _result(one: Operation, named: dict[str, Any]) -> dict[str, Any]:
    hint = operations.hints_of(one.method)["return"]
    if not one.is_paged:
        return plain.schema(hint, named)
    items = {"type": "array", "items": plain.schema(get_args(hint)[0], named)}
    following = {
        "type": ["string", "null"],
        "description": "The cursor of the next page; null: this is the last one.",
    }
    return {
        "type": "object",
        "properties": {"items": items, "next": following},
        "required": ["items", "next"],
    }


def _arguments(entry: dict[str, Any], one: Operation, named: dict[str, Any]) -> None:
    """Describe the arguments."""
    hints = operations.hints_of(one.method)
    for parameter in entry["parameters"]:
        parameter["schema"] = _scalar(hints[parameter["name"]], named)
    others = list(operations.others(one))
    fields = {each.name: plain.schema(hints[each.name], named) for each in others}
    needed = [each.name for each in others if each.default is each.empty]
    if one.is_paged:
        fields["page_size"] = {"type": "integer", "minimum": 1, "maximum": one.page}
        fields["cursor"] = {"type": "string", "description": "`next` of the previous page."}
    if not one.in_body:
        entry["parameters"] += [
            {
                "name": name,
                "in": "query",
                "required": name in needed,
                "schema": _scalar(hints[name], named) if name in hints else schema,
            }
            for name, schema in fields.items()
        ]
    elif fields:
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": fields,
            "required": needed,
        }
        entry["requestBody"] = {"required": True, "content": _content(schema)}


def _scalar(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an argument in a path or query, which cannot be null there."""
    others = [one for one in get_args(hint) if one is not type(None)]
    return plain.schema(others[0] if len(others) == 1 else hint, named)
