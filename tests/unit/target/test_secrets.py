"""The secrets of a target: one file, its owner's alone, read again whenever it is needed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.core.errors import PrepareError, StoreError, UsageError
from rayjobs.datastore import credentials
from rayjobs.datastore.backends import s3_settings
from rayjobs.datastore.backends.s3_settings import S3Settings
from rayjobs.datastore.errors import AccessDenied
from rayjobs.node.hosts import read_secrets
from rayjobs.node.secrets import NodeSecrets
from rayjobs.protocol.attempts import SecretSource
from rayjobs.target import local_head
from rayjobs.target.secrets import Taken, TargetSecrets
from tests.support.attempts import on_node

VALUE = "a-value-that-nothing-shows"


@pytest.fixture
def secrets(tmp_path: Path) -> TargetSecrets:
    return TargetSecrets("local", home=tmp_path)


@pytest.fixture(autouse=True)
def nothing_given() -> Iterator[None]:
    s3_settings._session.cache_clear()  # it keeps the credentials that another test has found
    yield
    credentials.give({})


def test_a_secret_is_kept_for_its_owner_alone_and_never_shown(secrets: TargetSecrets) -> None:
    secrets.set("PHOTOS_KEY", VALUE)
    assert secrets.values() == {"PHOTOS_KEY": VALUE}
    assert stat.S_IMODE(secrets.path.stat().st_mode) == 0o600
    assert VALUE not in repr(secrets.all())
    assert secrets.remove("PHOTOS_KEY")
    assert not secrets.remove("PHOTOS_KEY")
    assert secrets.values() == {}


def test_a_file_that_others_can_read_is_refused(secrets: TargetSecrets) -> None:
    secrets.set("PHOTOS_KEY", VALUE)
    secrets.path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        secrets.values()


def test_a_damaged_file_is_refused_and_not_replaced(secrets: TargetSecrets) -> None:
    secrets.set("PHOTOS_KEY", VALUE)
    secrets.path.write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        secrets.set("OTHER", "x")
    assert secrets.path.read_text() == "{"


def test_a_shell_never_replaces_what_a_user_has_set(secrets: TargetSecrets) -> None:
    secrets.set("SET", "by hand")
    shell = {"SET": "exported", "EXPORTED": "one", "OTHER": "not asked for", "EMPTY": ""}
    names = ["SET", "EXPORTED", "EMPTY"]
    assert secrets.take_over(names, shell) == Taken(("EXPORTED",))
    assert secrets.take_over(names, shell) == Taken()
    rotated = {**shell, "EXPORTED": "two"}
    assert secrets.take_over(names, rotated) == Taken(("EXPORTED",))
    assert secrets.values() == {"SET": "by hand", "EXPORTED": "two"}


ID, SECRET, TOKEN = credentials.AWS_KEYS


def test_permanent_aws_keys_replace_temporary_ones_as_a_whole(secrets: TargetSecrets) -> None:
    """Off switch: drop nothing in `take_over`."""
    temporary = {ID: "ASIA1", SECRET: "s1", TOKEN: "t1"}
    permanent = {ID: "AKIA2", SECRET: "s2"}
    assert secrets.take_over([ID, SECRET], temporary) == Taken(
        (ID, SECRET, TOKEN)
    )  # one credential
    assert secrets.values() == temporary
    assert secrets.take_over([SECRET], {SECRET: "s1"}) == Taken()
    assert secrets.values() == temporary
    assert secrets.take_over(credentials.AWS_KEYS, permanent) == Taken((ID, SECRET), (TOKEN,))
    assert secrets.values() == permanent


def test_aws_keys_of_a_user_and_of_a_shell_are_never_mixed(secrets: TargetSecrets) -> None:
    """Off switch: take over what `BY_USER` lacks."""
    shell = {ID: "ASIA1", SECRET: "s1", TOKEN: "t1"}
    secrets.take_over(credentials.AWS_KEYS, shell)
    assert secrets.set(ID, "AKIA2") == (SECRET, TOKEN)
    assert secrets.set(SECRET, "s2") == ()
    assert secrets.take_over([*credentials.AWS_KEYS, "X"], {**shell, "X": "x"}) == Taken(("X",))
    assert secrets.values() == {ID: "AKIA2", SECRET: "s2", "X": "x"}


def test_two_submits_at_once_leave_one_whole_credential(
    secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: compare with what was read before the lock was taken."""
    permanent = {ID: "AKIA2", SECRET: "s2"}
    temporary = {ID: "AKIA2", SECRET: "s1", TOKEN: "t1"}
    secrets.take_over(credentials.AWS_KEYS, permanent)
    real = TargetSecrets._changing

    def other_first(self: TargetSecrets) -> object:
        monkeypatch.setattr(TargetSecrets, "_changing", real)
        self.take_over(credentials.AWS_KEYS, temporary)
        return real(self)

    monkeypatch.setattr(TargetSecrets, "_changing", other_first)
    secrets.take_over(credentials.AWS_KEYS, permanent)
    assert secrets.values() == permanent


@pytest.mark.parametrize(("name", "value"), [("A-B", "x"), ("A", ""), ("", "x"), ("A", "\0")])
def test_invalid_secret_is_refused(secrets: TargetSecrets, name: str, value: str) -> None:
    with pytest.raises(UsageError):
        secrets.set(name, value)
    assert not secrets.path.exists()


# --- commands -------------------------------------------------------------------------------------


def test_the_commands_set_list_and_remove_and_print_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path))
    monkeypatch.setenv("FROM_SHELL", VALUE)
    monkeypatch.delenv("NOT_EXPORTED", raising=False)
    run = CliRunner()
    results = [
        run.invoke(main, ["target", "secret", "set", "FROM_SHELL"]),
        run.invoke(main, ["target", "secret", "set", "PIPED", "--stdin"], input=f"{VALUE}\n"),
        run.invoke(main, ["target", "secret", "ls"]),
        run.invoke(main, ["target", "secret", "ls", "--json"]),
    ]
    assert all(VALUE not in one.output for one in results), [one.output for one in results]
    assert json.loads(results[-1].stdout) == [
        {"name": "FROM_SHELL", "given_by": "user"},
        {"name": "PIPED", "given_by": "user"},
    ]
    assert TargetSecrets("local", home=tmp_path).values()["PIPED"] == VALUE
    assert run.invoke(main, ["target", "secret", "rm", "PIPED"]).exit_code == 0
    assert "PIPED" not in run.invoke(main, ["target", "secret", "ls"]).output


# --- on a node ------------------------------------------------------------------------------------

READS = on_node(reads_secrets=True)


def test_a_node_reads_the_file_again_for_every_attempt(
    tmp_path: Path, secrets: TargetSecrets
) -> None:
    node = NodeSecrets("local", tmp_path, dict)
    secrets.set("PHOTOS_KEY", "one")
    node.bring(READS, is_far=False)
    assert credentials.variable("PHOTOS_KEY") == "one"
    secrets.set("PHOTOS_KEY", "two")
    node.bring(READS, is_far=False)
    assert credentials.variable("PHOTOS_KEY") == "two"
    assert "PHOTOS_KEY" not in os.environ  # where child processes and /proc would show it


def test_remote_node_gets_secrets_from_the_target_and_keeps_them_in_memory(
    tmp_path: Path,
) -> None:
    node = NodeSecrets("lab", tmp_path, lambda: {"PHOTOS_KEY": VALUE})
    node.bring(READS, is_far=True)
    assert read_secrets({"TOKEN": SecretSource(env="PHOTOS_KEY")}) == {"TOKEN": VALUE}
    assert list(tmp_path.rglob("*")) == []


def test_a_target_that_does_not_answer_delays_an_attempt_and_not_its_end(tmp_path: Path) -> None:
    def away() -> dict[str, str]:
        raise StoreError("the target cannot be reached")

    credentials.give({"PHOTOS_KEY": "known"})
    node = NodeSecrets("lab", tmp_path, away)
    with pytest.raises(PrepareError) as caught:
        node.bring(READS, is_far=True)
    assert (caught.value.failure_class, caught.value.is_permanent) == ("storage", False)
    node.bring_again(READS, is_far=True)
    assert credentials.variable("PHOTOS_KEY") == "known"


def test_job_without_data_or_secrets_does_not_wait(tmp_path: Path) -> None:
    def never() -> dict[str, str]:
        raise AssertionError("the target was called")

    NodeSecrets("lab", tmp_path, never).bring(on_node(), is_far=True)


@pytest.mark.long
def test_client_uses_the_credentials_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off switch: read `os.environ` in `_variable`."""
    named = S3Settings("b", endpoint="http://x", access_key_env="K", secret_key_env="S")
    found = S3Settings("b", endpoint="http://x")
    for name in (*credentials.AWS_KEYS, "K", "S"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AccessDenied, match="rayjobs target secret set K") as caught:
        named.client()
    assert caught.value.is_permanent
    credentials.give({"K": "key", "S": "secret", **dict.fromkeys(credentials.AWS_KEYS[:2], "aws")})
    assert named.client()._request_signer._credentials.access_key == "key"
    assert found.client()._request_signer._credentials.access_key == "aws"
    # A key alone, such as a job's own secret, is not a credential: the usual search continues.
    credentials.give({"AWS_SECRET_ACCESS_KEY": "aws"})
    for name, value in zip(credentials.AWS_KEYS[:2], ("of the shell", "s"), strict=True):
        monkeypatch.setenv(name, value)
    assert found.client()._request_signer._credentials.access_key == "of the shell"


def test_client_uses_the_proxy_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Off switch: return {} in `_given_proxies`."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "inside.test")
    proxy = "http://user:pass@proxy:3128"
    credentials.give({"HTTPS_PROXY": proxy})

    def proxy_of(url: str) -> object:
        session = S3Settings("b", endpoint=url).client()._endpoint.http_session
        return session._proxy_config.proxy_url_for(url)

    assert proxy_of("https://outside.test") == proxy
    assert proxy_of("https://inside.test") is None


# --- what a target keeps of the shell -------------------------------------------------------------


def test_a_target_takes_no_secret_from_the_shell_that_starts_it(home: Path) -> None:
    """Off switch: return True in `is_kept`."""
    kept = {
        "PATH": "/bin",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost,.internal",
        "RAYJOBS_BYPASSED": "0",
        "AWS_PROFILE": "lab",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
        "LC_CTYPE": "C.UTF-8",
        "RAYJOBS_LOCAL_CPUS": "2",
        "UV_INDEX_URL": "https://pypi.internal/simple",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    left = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ACCESS_KEY_ID": "s",
        "AWS_SESSION_TOKEN": "s",
        "PHOTOS_KEY": "s",
        "GITHUB_TOKEN": "s",
        "RAYJOBS_SECRET_X": "s",
        "DATABASE_URL": "postgresql://u:p@h/d",
        "UV_INDEX_LAB_PASSWORD": "s",
        "DATASTORE_S3_PASS": "s",
        "RAYJOBS_DB_PWD": "s",
        "https_proxy": "http://user:pass@proxy:3128",
        "ALL_PROXY": "user:pass@proxy:3128",
        "PIP_INDEX_URL": "https://user:pass@pypi.internal/simple",
    }
    found = local_head.head_environment(home, "/t/token", base={**kept, **left})
    assert kept.items() <= found.items()
    assert not left.keys() & found.keys()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path
