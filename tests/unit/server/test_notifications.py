"""Receivers of notifications over HTTP: each user's own, and an admin's for everyone."""

from __future__ import annotations

import pytest

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.workspace import notifications
from rayjobs.workspace.users import Role
from tests.unit.server.conftest import Served

PATH = "/v1/notifications"


def test_a_user_has_his_own_and_an_admin_those_of_everyone(served: Served) -> None:
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
    with pytest.raises(UsageError, match="give `receiver`"):
        served.connection("ada").json("POST", PATH, body=body)


def test_what_is_no_receiver_is_refused(served: Served) -> None:
    with pytest.raises(UsageError, match="web address"):
        served.connection("ada").json("POST", PATH, body={"receiver": "file:///etc/passwd"})
