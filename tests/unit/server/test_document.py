"""The OpenAPI document: each argument and each answer has a schema, and values match it."""

from __future__ import annotations

import json
import re
from dataclasses import make_dataclass
from typing import Any

import pytest

from rayjobs.core.errors import StoreBusyError, StoreFullError, UnreachableError
from rayjobs.remote import operations
from rayjobs.remote.operations import OPERATIONS
from rayjobs.server import app, metrics, openapi
from rayjobs.server.lines import Lines
from rayjobs.server.routes import BYTES, JSON
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


def test_each_status_of_an_error_is_described(served: Served) -> None:
    responses = served.connection().json("GET", "/v1/openapi.json")["paths"]["/v1/jobs"]["post"][
        "responses"
    ]
    known = (StoreFullError("full"), UnreachableError("away"), StoreBusyError("busy"))
    assert {str(app._status_of(one)) for one in known} == {"507", "500", "503"}
    assert {"500", "503", "507"} <= responses.keys()


def test_the_routes_of_handlers_are_described_by_their_classes(served: Served) -> None:
    by_hand = app.routes_by_hand(served.workspace, metrics.Requests(Lines(None)), "")
    assert len(by_hand) > 30
    paths = openapi.document(by_hand)["paths"]
    for route in by_hand:
        entry = paths[re.sub(r":\w+}", "}", route.path)][route.verb.lower()]
        answers = entry["responses"]
        (answer,) = (answers.get("200") or answers["206"])["content"].items()
        is_text = route.answer in (bytes, str) and route.media != JSON
        assert answer == (route.media, {"schema": {} if is_text else schema_of(route.answer)})
        if route.body is None:
            assert "requestBody" not in entry
            continue
        (body,) = entry["requestBody"]["content"].items()
        is_file = route.body is bytes
        assert body == (
            (BYTES, {"schema": {}}) if is_file else (JSON, {"schema": schema_of(route.body)})
        )


def schema_of(hint: Any) -> Any:
    """Return the schema of a type, in which every object has a class."""
    made = plain.schema(hint, {})
    assert '"object"' not in json.dumps(made)
    return made


def test_two_records_of_one_name_are_refused() -> None:
    one = make_dataclass("TwinRecord", [("a", int)])
    other = make_dataclass("TwinRecord", [("b", int)])
    plain.schema(one, {})
    with pytest.raises(TypeError, match="two records are called TwinRecord"):
        plain.schema(other, {})


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
