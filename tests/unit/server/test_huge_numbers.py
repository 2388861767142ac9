"""Numbers of any size, in every place of every request: refused with a sentence, never an error."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from rayjobs.core.errors import UsageError
from rayjobs.jobs.records import ScheduleRecord
from rayjobs.jobs.writers import ProcessWriter
from rayjobs.server import access
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob, NewRun
from rayjobs.workspace import plain
from rayjobs.workspace.folder import OpenWorkspace
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served
from tests.unit.server.test_schedules import create, pipeline

__all__ = ["create", "pipeline"]

# JSON texts: beyond a float, a store's integer, a timedelta; and the largest that each holds.
NUMBERS = (
    "1" + 400 * "0",
    "-1" + 400 * "0",
    "1e999",
    "1.7e308",
    "1e18",
    str(10**30),
    str(2**63 - 1),
    str(-(2**63)),
    str(10**15),
)
# Larger than any page or upload: behind zeros, and with more digits than Python converts.
PADDED = ("0000000019999", "0" * 30 + str(10**12), "0000000000000001" + 5000 * "0")
# These have no end, or start processes.
LEFT_OUT = {
    "/v1/jobs/{job_id}/log-stream",
    "/v1/jobs/{job_id}/event-stream",
    "/v1/event-stream",
    "/v1/targets/{target}/start",
    "/v1/targets/{target}/wake",
}
MARK = "<number>"


def instance(schema: dict[str, Any], named: dict[str, Any], depth: int = 0) -> Any:
    """Return a value of a schema with `MARK` for each number."""
    if "$ref" in schema:
        if depth > 8:
            return None
        return instance(named[schema["$ref"].rpartition("/")[2]], named, depth + 1)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            kinds = [one for one in schema[name] if one.get("type") != "null"]
            numbers = [one for one in kinds if one.get("type") in ("integer", "number")]
            return instance((numbers or kinds)[0], named, depth + 1)
    if "enum" in schema or "const" in schema:
        return [*schema.get("enum", ()), schema.get("const")][0]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return MARK
    if kind == "boolean":
        return False
    if kind == "array":
        if "prefixItems" in schema:
            return [instance(one, named, depth + 1) for one in schema["prefixItems"]]
        return [instance(schema.get("items", {}), named, depth + 1)]
    if kind == "object" or "properties" in schema:
        return {
            name: instance(one, named, depth + 1)
            for name, one in schema.get("properties", {}).items()
        }
    if kind == "string":
        return "2026-01-31T12:00:00Z" if schema.get("format") == "date-time" else "a"
    return None


def with_one_number(value: Any, number: str) -> Iterator[str]:
    """Yield JSON texts, in each of which another number is `number`, and the others are 1."""
    text = json.dumps(value)
    parts = text.split(json.dumps(MARK))
    for place in range(len(parts) - 1):
        found = parts[0]
        for at, part in enumerate(parts[1:]):
            found += (number if at == place else "1") + part
        yield found


def schema_of(operation: dict[str, Any]) -> dict[str, Any] | None:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if body is None else dict(body["schema"])


def requests(document: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Yield verb, path with query, and body of each request to send."""
    named = document.get("components", {}).get("schemas", {})
    for path, verbs in document["paths"].items():
        if path in LEFT_OUT:
            continue
        for verb, operation in verbs.items():
            for where, text in requests_of(path, operation, named):
                yield verb.upper(), where, text


def requests_of(
    path: str, operation: dict[str, Any], named: dict[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """Yield path with query, and body of each request to send to an operation."""
    schema, parameters = schema_of(operation), operation.get("parameters", [])
    where = path
    for one in parameters:
        if one["in"] == "path":
            where = where.replace("{" + one["name"] + "}", "REAL")
    for number in NUMBERS:
        if schema is not None:
            for text in with_one_number(instance(schema, named), number):
                yield where, text
        for one in parameters:
            if one["in"] == "query":
                yield f"{where}?{one['name']}={quote(number)}", None
            elif one["in"] == "path":
                put = path.replace("{" + one["name"] + "}", quote(number))
                yield put.replace("{", "a").replace("}", "a"), None


@pytest.mark.timeout(300)
@pytest.mark.long
def test_no_number_ends_in_an_internal_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BURST", 1e9)
    monkeypatch.setattr(access, "PER_SECOND", 1e9)
    connection = served.connection("root", Role.ADMIN)
    headers = {"Authorization": f"Bearer {connection._login.token}"}
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="root")
    job, _ = served.workspace.store.submit(new)
    document = connection.json("GET", "/v1/openapi.json")
    by_hand = [
        ("POST", "/v1/tokens", json.dumps({"user": "a", "role": "viewer", "days": MARK})),
        ("POST", f"/v1/uploads/{32 * 'a'}/keep", json.dumps({"size": MARK})),
        ("POST", f"/v1/uploads/{32 * 'a'}/parts", json.dumps({"size": MARK})),
    ]
    sent = [
        *requests(document),
        *(
            (verb, path, text.replace(json.dumps(MARK), number))
            for verb, path, text in by_hand
            for number in NUMBERS
        ),
    ]
    failures, statuses = [], set()
    client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    for verb, path, body in sent:
        client.request(verb, path.replace("REAL", job.id), body=body, headers=headers)
        answer = client.getresponse()
        text = answer.read()
        statuses.add(answer.status)
        if answer.status >= 500:
            client.close()  # as the server does after such an answer
        if answer.status >= 500 or (
            answer.status >= 400 and not json.loads(text)["error"]["message"]
        ):
            failures.append(f"{answer.status} {verb} {path:.200} {body or '':.300} {text!r:.300}")
    client.close()
    assert len(sent) > 1000 and {200, 400} <= statuses
    assert not failures, f"{len(failures)}\n" + "\n".join(failures[:40])


@pytest.mark.parametrize("number", PADDED, ids=("short", "long", "unconvertible"))
def test_zeros_before_a_size_or_an_offset_do_not_hide_its_value(
    served: Served, number: str
) -> None:
    connection = served.connection("root", Role.ADMIN)
    page = "page_size is a whole number from 1 to 500"
    for path in ("/v1/audit", "/v1/sweeps"):
        with pytest.raises(UsageError, match=page):
            connection.json("GET", path, query={"page_size": number})
    with pytest.raises(UsageError, match=page):
        connection.json("POST", "/v1/jobs:list", body={"page_size": number})
    with pytest.raises(UsageError, match="offset must be a whole number of at most"):
        query = {"offset": "0" * 12 + number}
        connection.json("PATCH", f"/v1/uploads/{32 * 'a'}", query=query)


def places_of(schema: dict[str, Any], named: dict[str, Any]) -> Iterator[Any]:
    """Yield values of an object's fields, one field at a time, that have a number."""
    if "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    for name, one in schema.get("properties", {}).items():
        value = instance(one, named)
        if MARK in json.dumps(value):
            yield {name: value}


@pytest.mark.timeout(300)
def test_no_number_of_a_valid_request_ends_in_an_internal_error(
    served: Served, create: Callable[[OpenWorkspace], ScheduleRecord], monkeypatch: Any
) -> None:
    monkeypatch.setattr(access, "BURST", 1e9)
    monkeypatch.setattr(access, "PER_SECOND", 1e9)
    client = served.client("root", Role.ADMIN)
    record = plain.encoder(ScheduleRecord)(create(client))
    connection = served.connection("root", Role.ADMIN)
    headers = {"Authorization": f"Bearer {connection._login.token}"}
    writer = ProcessWriter.own().to_json()
    run, _ = client.store.start_run(NewRun(experiment="e", name="", user="root", writer=writer))
    schema = JobSpec.model_json_schema()
    specs = [{"command": "true", **one} for one in places_of(schema, schema["$defs"])]
    new = {"experiment": "e", "snapshot": None}
    cases: list[tuple[str, str, Any]] = [
        *(("POST", "/v1/jobs", {"new": {**new, "spec": one}}) for one in specs),
        *(
            ("POST", "/v1/runs", {"new": {"experiment": "e", "name": "", "writer": changed}})
            for changed in ({**writer, "pid": MARK}, {**writer, "start_time": MARK})
        ),
        *(
            (
                "POST",
                "/v1/jobs",
                {"new": {**new, "spec": {"command": "true", "resources": {one: MARK}}}},
            )
            for one in ("cpus", "gpus", "memory_gib")
        ),
        ("POST", "/v1/arrays", {"new": {**new, "spec": array_of(MARK)}}),
        *(
            ("POST", path, {"which": {"limit": MARK, "after": MARK}})
            for path in ("/v1/jobs:list", "/v1/jobs:read")
        ),
        ("POST", "/v1/jobs:list", {"page_size": MARK}),
        ("POST", "/v1/jobs:serials", {"serials": [MARK]}),
        *(
            ("POST", f"/v1/runs/{run.id}/metrics", {"points": [point]})
            for point in places_of_point()
        ),
        ("PUT", "/v1/schedules", {"record": with_recurrence(record, {"interval": MARK})}),
        ("PUT", "/v1/schedules", {"record": with_recurrence(record, {"hours": [MARK]})}),
        ("PUT", "/v1/schedules", {"record": with_recurrence(record, {"minutes": [MARK]})}),
        ("PUT", "/v1/schedules", {"record": with_watch(record, MARK)}),
        ("PUT", "/v1/schedules", {"record": {**record, "parameters": {"level": MARK}}}),
        *(
            (
                "POST",
                "/v1/targets/local/ask",
                {"op": "session", "job": run.id, "step": {"op": "read", "id": "a", name: MARK}},
            )
            for name in ("rank", "port", "after", "rows", "columns", "offset")
        ),
        ("POST", "/v1/targets/local/ask", {"op": "status", "keys": [MARK]}),
    ]
    failures, statuses = [], set()
    http_client = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    for verb, path, value in cases:
        for number in NUMBERS:
            for body in with_one_number(value, number):
                http_client.request(verb, path, body=body, headers=headers)
                answer = http_client.getresponse()
                text = answer.read()
                statuses.add(answer.status)
                if answer.status >= 500:
                    http_client.close()  # as the server does after such an answer
                    failures.append(f"{answer.status} {verb} {path} {body:.300} {text!r:.300}")
    http_client.close()
    assert {200, 400, 422} <= statuses
    assert not failures, f"{len(failures)}\n" + "\n".join(failures[:40])


def array_of(limit: str) -> dict[str, Any]:
    return {"command": "true", "array": {"indices": "0-3", "limit": limit, "count": limit}}


def places_of_point() -> Iterator[dict[str, Any]]:
    point = {"attempt": 0, "rank": 0, "sequence": 1, "name": "loss", "value": 0.5, "step": 1}
    point["at"] = "2026-01-31T12:00:00Z"
    for name in ("attempt", "rank", "sequence", "value", "step"):
        yield {**point, name: MARK}


def with_recurrence(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    frequency = "Day" if "interval" not in changes else "Hour"
    return {**record, "recurrence": {**record["recurrence"], "frequency": frequency, **changes}}


def with_watch(record: dict[str, Any], interval: str) -> dict[str, Any]:
    watched = {"datastore": "workspaceblobstore", "path": "", "polling_interval": interval}
    return {**record, "recurrence": None, "watched": {**watched, "parameter": None}}
