"""Credentials at submit: exported ones are passed on to the target, missing ones refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.core.errors import SpecError
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.credentials import AWS_KEYS
from rayjobs.spec.model import Input, JobSpec, Output, SecretRef
from rayjobs.submit.submitting import check, submit
from rayjobs.target.secrets import TargetSecrets
from rayjobs.workspace.folder import OpenWorkspace, open_workspace

NAMES = ("PHOTOS_KEY", "PHOTOS_SECRET")


@pytest.fixture
def workspace(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenWorkspace]:
    for name in (*NAMES, *AWS_KEYS, "RAYJOBS_SECRET_X"):
        monkeypatch.delenv(name, raising=False)
    with open_workspace(tmp_path / "ws") as opened:
        named = {"bucket": "b", "access_key_env": NAMES[0], "secret_key_env": NAMES[1]}
        opened.catalogue.add_datastore(DatastoreRecord("photos", "s3", named))
        opened.catalogue.add_datastore(DatastoreRecord("found", "s3", {"bucket": "b"}))
        half = {**named, "secret_key_env": "AWS_SECRET_ACCESS_KEY"}
        opened.catalogue.add_datastore(DatastoreRecord("half", "s3", half))
        yield opened


@pytest.fixture
def secrets(own_home: Path) -> TargetSecrets:
    return TargetSecrets("local", home=own_home / "h")


def spec(store: str = "photos", **more: object) -> JobSpec:
    values = {"command": "true", "name": "t", "outputs": {"out": Output(destination=f"{store}/o")}}
    return JobSpec(**{**values, **more})


def test_a_credential_that_the_target_cannot_see_is_refused_with_the_remedy(
    workspace: OpenWorkspace,
) -> None:
    """Off switch: leave out `credentials.missing` in `check`."""
    with pytest.raises(SpecError) as caught:
        submit(workspace, spec(), wake=False)
    text = str(caught.value)
    for name in NAMES:
        assert f"rayjobs target secret set {name} --target local" in text
    assert workspace.store.jobs() == []


def test_exported_credentials_are_passed_on_once(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: leave out `hand_on_credentials` in `submit`."""
    for name in NAMES:
        monkeypatch.setenv(name, f"value of {name}")
    check(workspace, spec())
    assert not secrets.path.exists()  # a dry run changes nothing
    first = submit(workspace, spec(), wake=False)
    assert secrets.values() == {name: f"value of {name}" for name in NAMES}
    (note,) = [one for one in first.warnings if "PHOTOS_KEY" in one]
    assert "value of" not in note
    again = submit(workspace, spec(), wake=False)
    assert not [one for one in again.warnings if "PHOTOS_KEY" in one]
    for name in NAMES:
        monkeypatch.delenv(name)
    submit(workspace, spec(), wake=False)  # the target has them


def test_standard_aws_keys_are_passed_on_but_not_required(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(workspace, spec("found"), wake=False)  # a profile, or the machine itself, may have them
    assert not secrets.path.exists()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    submit(workspace, spec("found"), wake=False)
    assert secrets.values() == {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


def test_only_needed_credentials_are_passed_on(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*NAMES, "RAYJOBS_SECRET_X"):
        monkeypatch.setenv(name, "v")
    plain = spec(outputs={}, secrets={"TOKEN": SecretRef(env="RAYJOBS_SECRET_X")})
    submit(workspace, plain, wake=False)
    assert secrets.values() == {"RAYJOBS_SECRET_X": "v"}


def test_required_aws_key_is_passed_on_alone(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: drop `needs.required` too where no AWS_ACCESS_KEY_ID is exported."""
    exported = {"PHOTOS_KEY": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    submit(workspace, spec("found"), wake=False)
    assert not secrets.path.exists()  # of no use to the usual AWS search
    both = {name: Output(destination=f"{name}/o") for name in ("half", "found")}
    for outputs in (spec("half").outputs, both):
        submit(workspace, spec(outputs=outputs), wake=False)
        assert secrets.values() == exported
        secrets.path.unlink()


def test_a_required_aws_key_next_to_others_that_a_user_set_is_refused(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: leave out `_kept_apart`."""
    secrets.set("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("PHOTOS_KEY", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with pytest.raises(SpecError, match="rayjobs target secret set AWS_SECRET_ACCESS_KEY"):
        submit(workspace, spec("half"), wake=False)
    assert secrets.values() == {"AWS_ACCESS_KEY_ID": "k"}


def test_proxy_password_is_passed_on_for_network_access(
    workspace: OpenWorkspace, secrets: TargetSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: leave out `proxies_with_password` in `needs_of`."""
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")  # the target keeps it
    monkeypatch.setenv("HTTPS_PROXY", "http://user:pass@proxy:3128")
    submit(workspace, spec(outputs={}), wake=False)
    assert not secrets.path.exists()
    expected = {"HTTPS_PROXY": "http://user:pass@proxy:3128"}
    submit(workspace, spec("found"), wake=False)
    assert secrets.values() == expected
    secrets.path.unlink()
    submit(workspace, spec(outputs={}, environment={"pip": ["six"]}), wake=False)
    assert secrets.values() == expected


def test_credential_set_on_the_target_is_not_requested_again(
    workspace: OpenWorkspace, secrets: TargetSecrets
) -> None:
    inputs = {"data": Input(source="photos/digits")}
    with pytest.raises(SpecError, match="rayjobs target secret set PHOTOS_KEY"):
        check(workspace, spec(inputs=inputs, outputs={}))
    for name in NAMES:
        secrets.set(name, "v")
    (warning,) = check(workspace, spec(inputs=inputs, outputs={})).warnings
    assert warning.startswith("the path of input data was not checked")
    assert "secret set" not in warning
