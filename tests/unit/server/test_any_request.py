"""Requests of any form, made from the OpenAPI document: none ends in an internal error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from rayjobs.server import access
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

EXAMPLES = 4
# The followed log of a waiting job has no end; the test must not start a target.
ENDLESS = {
    "/v1/jobs/{job_id}/log-stream",
    "/v1/jobs/{job_id}/event-stream",
    "/v1/targets/{target}/start",
}


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BURST", 1e9)
    monkeypatch.setattr(access, "PER_SECOND", 1e9)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_request_ends_in_an_internal_error(unbounded: None, served: Served) -> None:
    connection = served.connection("root", Role.ADMIN)
    headers = {"Authorization": f"Bearer {connection._login.token}"}
    new = NewJob(spec=JobSpec(command="true", name="real"), experiment="e", snapshot=None, user="")
    job, _ = served.workspace.store.submit(new)
    real = {"job_id": job.id, "text": "real", "target": "local", "name": "workspaceblobstore"}
    document = json.loads(json.dumps(connection.json("GET", "/v1/openapi.json")))
    failures: list[str] = []
    count = 0
    for operation in operations_of(document):
        count += 1
        if operation.path == "/v1/event-stream":
            continue  # it has no end at all

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy_of(operation), is_real=st.booleans())
        def send(case: Any, is_real: bool) -> None:
            if is_real and case.path not in ENDLESS and isinstance(case.path_parameters, dict):
                for name in real.keys() & case.path_parameters.keys():
                    case.path_parameters[name] = real[name]
            answer = case.call(base_url=served.address, headers=headers, timeout=60)
            if answer.status_code >= 500:
                failures.append(f"{case.as_curl_command()}\n    {answer.text[:500]}")

        send()
    assert count > 80
    assert not failures, "\n".join(failures[:20])


def operations_of(document: dict[str, Any]) -> Iterator[Any]:
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        made: Any = found
        yield made.ok()


def strategy_of(operation: Any) -> st.SearchStrategy[Any]:
    """Return requests that match the document, and requests that do not."""
    return st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )
