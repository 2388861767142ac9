"""The OpenAPI document: each argument and each answer has a schema, and values match it."""

from __future__ import annotations

import json
from typing import Any

from rayjobs.remote import operations
from rayjobs.remote.operations import OPERATIONS
from rayjobs.workspace import plain
from tests.unit.server.conftest import Served


def test_each_answer_has_a_schema(served: Served) -> None:
    document = served.connection().json("GET", "/v1/openapi.json")
    named = document["components"]["schemas"]
    for path, entries in document["paths"].items():
        for verb, entry in entries.items():
            answers = entry["responses"]
            done = answers.get("200") or answers["206"]
            (content,) = done["content"].values()
            is_stream = "application/json" not in done["content"]
            assert content["schema"] or is_stream, f"describe {verb} {path} in server/openapi.py"
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in named
    job = named["Job"]["properties"]
    assert job["state"] == {"$ref": "#/components/schemas/JobState"}
    assert named["JobState"]["enum"][0] == "Queued"
    assert "user" not in named["NewJob"]["required"]
    json.dumps(document, allow_nan=False)


def references(tree: Any) -> set[str]:
    if isinstance(tree, list):
        return set().union(*(references(one) for one in tree)) if tree else set()
    if not isinstance(tree, dict):
        return set()
    own = {tree["$ref"]} if isinstance(tree.get("$ref"), str) else set()
    return own.union(*(references(one) for one in tree.values()))


def test_every_type_of_the_table_has_a_plain_form() -> None:
    for one in OPERATIONS:
        for hint in operations.hints_of(one.method).values():
            plain.encoder(hint)
            plain.decoder(hint)
            plain.schema(hint, {})
