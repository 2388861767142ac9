"""Commands that say at once what a server would refuse; the table of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.core.errors import UsageError
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import NewJob
from rayjobs.target import targets
from rayjobs.workspace import server_choice, users
from rayjobs.workspace.users import Role
from tests.unit.results.played import begin
from tests.unit.server.conftest import Served


@pytest.mark.parametrize(
    ("user", "role", "text"),
    [("bob", Role.VIEWER, "role viewer"), ("eve", Role.SUBMITTER, "is ada's: only an admin")],
)
def test_refused_port_forward_does_not_listen(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    role: Role,
    text: str,
) -> None:
    new = NewJob(spec=JobSpec(command="true"), experiment="e", snapshot=None, user="")
    job, _ = served.client("ada").store.submit(new)
    begin(served.workspace, job, tmp_path / "a1")
    token = users.add(served.workspace.store, user, role, by="root")[1]
    monkeypatch.setenv(server_choice.ADDRESS, served.address)
    monkeypatch.setenv(server_choice.TOKEN, token)
    server_choice.allow()
    done = CliRunner().invoke(main, ["port", job.id, "0:6006"])
    assert done.exit_code != 0 and text in f"{done.output}{done.exception}"


def test_a_refused_command_is_named_as_users_call_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_choice, "_is_allowed", True)
    monkeypatch.setattr(server_choice, "_active", served.connection())
    with pytest.raises(UsageError, match="`rayjobs target rm` only works on the server's own"):
        targets.remove_target("lab")


def test_an_expired_token_is_listed_as_such(served: Served) -> None:
    for name, days in (("ada", 1.0), ("eve", 1e-9)):
        users.add(served.workspace.store, name, Role.VIEWER, by="root", days=days)
    done = CliRunner().invoke(main, ["user", "ls", "--workspace", str(served.workspace.path)])
    ada, eve = sorted(done.stdout.splitlines(), key=lambda line: line.split()[1])
    assert "until 20" in ada and "expired 20" in eve
