"""The OpenAPI document of the server, from the same table as its routes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from rayjobs.core.version import __version__
from rayjobs.remote import operations
from rayjobs.remote.operations import OPERATIONS, Operation
from rayjobs.workspace.users import Role

_ERRORS = {
    "400": "The request cannot be read.",
    "401": "No token, or one that is wrong, expired or revoked.",
    "403": "The role does not allow it, or it is another user's.",
    "404": "There is no such thing.",
    "422": "It is not valid.",
    "429": "Too many requests.",
}


def document(extra: Sequence[tuple[str, str, Role]]) -> dict[str, Any]:
    """Return the document; `extra` are the routes that are no methods of a store."""
    found: dict[str, dict[str, Any]] = {}
    for verb, path, role in extra:
        _add(found, verb, path, role, summary=path.rpartition("/v1/")[2])
    for one in OPERATIONS:
        doc = inspect.getdoc(operations.method_of(one.method)) or ""
        entry = _add(found, one.verb, one.path, one.role, summary=doc.split("\n")[0])
        entry["operationId"] = one.method
        _arguments(entry, one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rayjobs", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": found,
    }


def _add(
    found: dict[str, dict[str, Any]], verb: str, path: str, role: Role, *, summary: str
) -> dict[str, Any]:
    bare = re.sub(r"{(\w+):\w+}", r"{\1}", path)
    entry: dict[str, Any] = {
        "summary": summary,
        "description": f"Role: {role.name.lower()}.",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", bare)
        ],
        "responses": {
            "200": {"description": "Done."},
            **{status: {"description": text} for status, text in _ERRORS.items()},
        },
    }
    found.setdefault(bare, {})[verb.lower()] = entry
    return entry


def _arguments(entry: dict[str, Any], one: Operation) -> None:
    """Describe the arguments that are not in the path. Their form is that of `protocol.values`."""
    named = list(operations.others(one))
    if not named:
        return
    if not one.in_body:
        entry["parameters"] += [
            {
                "name": parameter.name,
                "in": "query",
                "required": parameter.default is parameter.empty,
                "description": str(parameter.annotation),
                "content": {"application/json": {}},
            }
            for parameter in named
        ]
        return
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            parameter.name: {"description": str(parameter.annotation)} for parameter in named
        },
        "required": [p.name for p in named if p.default is p.empty],
    }
    entry["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
