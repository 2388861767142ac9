"""Receivers of notifications over HTTP: each user's own, and an admin's for everyone."""

from __future__ import annotations

import itertools
from contextlib import closing

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.jobs.events import SpecRevised
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.workspace import notifications
from rayjobs.workspace.http_messages import NewEvent, StreamPosition
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

PATH = "/v1/notifications"


def test_users_manage_their_own_receivers_and_admins_all(served: Served) -> None:
    ada, eve = served.connection("ada"), served.connection("eve")
    root = served.connection("root", Role.ADMIN)
    mine = ada.json("POST", PATH, body={"receiver": "failed=ada@example.org"})
    assert mine["user"] == "ada"
    with pytest.raises(UsageError, match="only an admin"):
        ada.json("POST", PATH, body={"receiver": "ada@example.org", "everyone": True})
    all_of = root.json("POST", PATH, body={"receiver": "https://example.org/x", "everyone": True})
    assert [one["id"] for one in eve.json("GET", PATH)] == [all_of["id"]]
    assert {one["id"] for one in root.json("GET", PATH)} == {mine["id"], all_of["id"]}
    for foreign in (mine, all_of):
        with pytest.raises(NotFoundError):
            eve.json("DELETE", f"{PATH}/{foreign['id']}")
    ada.json("DELETE", f"{PATH}/{mine['id']}")
    root.json("DELETE", f"{PATH}/{all_of['id']}")
    assert notifications.subscriptions(served.workspace.store) == []


@pytest.mark.parametrize("body", [{}, {"receiver": 3}, {"receiver": "x@y.z", "everyone": "yes"}])
def test_a_malformed_receiver_is_refused(served: Served, body: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"the body cannot be read.*(receiver|everyone)"):
        served.connection("ada").json("POST", PATH, body=body)


def test_invalid_receiver_is_refused(served: Served) -> None:
    with pytest.raises(UsageError, match="web address"):
        served.connection("ada").json("POST", PATH, body={"receiver": "file:///etc/passwd"})


HOOK = "failed=https://hooks.example.org/services/T0/SECRET"


def test_the_address_of_a_receiver_is_its_owners_and_admins_alone(served: Served) -> None:
    root, eve = served.connection("root", Role.ADMIN), served.connection("eve")
    made = root.json("POST", PATH, body={"receiver": HOOK, "everyone": True})
    assert made["receiver"] == HOOK == root.json("GET", PATH)[0]["receiver"]
    assert [one["receiver"] for one in eve.json("GET", PATH)] == [
        "failed=https://hooks.example.org/…"
    ]


def test_the_receivers_of_a_job_are_its_users_and_admins_alone(served: Served) -> None:
    ada, eve = served.client("ada"), served.client("eve")
    spec = JobSpec(command="true", notify=(HOOK, "ada@example.org"))
    job, _ = ada.store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user=""))
    root = served.client("root", Role.ADMIN)
    for client, sees in ((ada, spec.notify), (root, spec.notify), (eve, ("ada@example.org",))):
        assert client.store.job(job.id).spec.notify == sees
        assert client.store.jobs()[0].spec.notify == sees
        assert client.store.find(job.id).spec.notify == sees


def test_the_receivers_of_a_published_pipeline_are_its_authors(served: Served) -> None:
    ada, eve = served.client("ada"), served.client("eve")
    definition = {"steps": [{"job": {"notify": [HOOK], "user": ""}}], "notify": [HOOK]}
    made = ada.store.publish_pipeline(definition, name="nightly")
    assert ada.store.published_pipeline(made.id).spec == definition
    assert "SECRET" not in str(eve.store.published_pipelines())
    assert "SECRET" not in str(eve.store.published_pipeline(made.id))


def test_a_revision_does_not_show_the_receivers_of_others(served: Served) -> None:
    ada, eve = served.client("ada"), served.client("eve")
    spec = JobSpec(command="true", notify=(HOOK,))
    job, _ = ada.store.submit(NewJob(spec=spec, experiment="e", snapshot=None, user=""))
    for notify in ((HOOK,), (HOOK + "2",)):
        changed = spec.model_copy(update={"priority": job.priority + 1, "notify": notify})
        revised = ada.store.revise(job, changed)
        assert revised is not None
        job = revised
    events = eve.store.events(job.id)
    assert sum(event.kind == SpecRevised.KIND for event in events) == 2
    assert "SECRET" not in str(events)
    assert "notify changed" in str(events)
    with closing(served.connection("eve")) as server:
        path = f"/v1/jobs/{job.id}/event-stream"
        lines = server.lines(path, NewEvent | StreamPosition, query={})
        streamed = list(itertools.islice(lines, len(events)))
    assert "SECRET" not in str(streamed)
    root = served.client("root", Role.ADMIN)
    assert "SECRET" in str(root.store.events(job.id))
