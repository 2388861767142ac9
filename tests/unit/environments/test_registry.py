"""Environments of a workspace: registered, found again by version and label, and built here."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from rayjobs import CondaDependencies, Environment, Workspace
from rayjobs.core.errors import NotFoundError, UsageError
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create("own", location=None, path=tmp_path / "workspace")


def environment(*packages: str) -> Environment:
    made = Environment("vision")
    made.python.conda_dependencies = CondaDependencies.create(pip_packages=packages)
    return made


def test_each_definition_is_a_version(workspace: Workspace) -> None:
    first = environment("numpy").register(workspace)
    assert (first.name, first.version) == ("vision", "1")
    assert environment("numpy", "scipy").register(workspace).version == "2"
    assert environment("numpy").register(workspace).version == "1"  # already registered
    assert Environment.get(workspace, "vision").version == "2"
    old = Environment.get(workspace, "vision", "1")
    assert old.python.conda_dependencies.pip_packages == ["numpy"]
    Environment.label(workspace, "vision", "1", ["stable"])
    assert Environment.get(workspace, "vision", label="stable").version == "1"
    listed = Environment.list(workspace)
    assert listed["vision"].version == "2"
    assert "azureml-pytorch-1.6" in listed
    clone = old.clone("other").register(workspace)
    assert (clone.name, clone.version) == ("other", "1")


def test_unregistered_environment_is_reported(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError, match="no environment 'absent'"):
        Environment.get(workspace, "absent")
    environment("numpy").register(workspace)
    for version in ("7", "x"):
        with pytest.raises(NotFoundError, match="no version"):
            Environment.get(workspace, "vision", version)
    with pytest.raises(NotFoundError, match="no label"):
        Environment.get(workspace, "vision", label="gone")
    with pytest.raises(UsageError, match="not both"):
        Environment.get(workspace, "vision", "1", "stable")
    with pytest.raises(UsageError, match="reserved for Azure ML"):
        Environment("AzureML-mine").register(workspace)


def test_curated_name_gives_its_packages(workspace: Workspace) -> None:
    found = Environment.get(workspace=workspace, name="AzureML-PyTorch-1.6-GPU")
    packages = found.python.conda_dependencies
    assert packages.get_python_version() == "3.6.2"
    assert {"azureml-defaults", "torch==1.6.0"} <= set(packages.pip_packages)
    assert found.clone("mine").register(workspace).version == "1"


@pytest.mark.long
def test_environment_is_built_locally_once(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "tiny-tool")
    made = environment("tiny-tool")
    for option in ("--no-index", f"--find-links {tmp_path}/wheels"):
        made.python.conda_dependencies.set_pip_option(option)
    assert made.get_image_details(workspace)["imageExistsInRegistry"] is False
    build = made.build(workspace)
    assert build.wait_for_completion() == "Succeeded"
    assert "tiny-tool==1.0" in build.lock
    assert "uv pip" in build.log
    details = made.get_image_details(workspace)
    assert (details["imageExistsInRegistry"], details["key"]) == (True, build.key)
    assert made.build_local(workspace).log == ""
    with pytest.raises(UsageError, match="nothing to build"):
        Environment("own").build(workspace)


def test_a_wheel_is_kept_in_the_workspace(workspace: Workspace, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny-tool")
    kept = Environment.add_private_pip_wheel(workspace, wheel)
    assert Path(kept).read_bytes() == wheel.read_bytes()
    with pytest.raises(UsageError, match="exist_ok"):
        Environment.add_private_pip_wheel(workspace, wheel)
    assert Environment.add_private_pip_wheel(workspace, wheel, exist_ok=True) == kept
    with pytest.raises(UsageError, match="not a wheel"):
        Environment.add_private_pip_wheel(workspace, Path(__file__))
    with pytest.raises(NotFoundError, match="no file"):
        Environment.add_private_pip_wheel(workspace, tmp_path / "absent.whl")


def test_two_registrations_of_one_wheel_at_a_time_do_not_mix(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a" / "tiny-1-py3-none-any.whl", tmp_path / "b"
    for folder in (first.parent, second):
        folder.mkdir()
    first.write_bytes(b"first")
    (second / first.name).write_bytes(b"second")
    copy = shutil.copyfile

    def copy_then_the_other(source: Path, target: str) -> None:
        copy(source, target)
        monkeypatch.setattr(shutil, "copyfile", copy)
        kept = Environment.add_private_pip_wheel(workspace, second / first.name, exist_ok=True)
        assert Path(kept).read_bytes() == b"second"

    monkeypatch.setattr(shutil, "copyfile", copy_then_the_other)
    kept = Path(Environment.add_private_pip_wheel(workspace, first))
    assert kept.read_bytes() == b"first"
    assert list(kept.parent.iterdir()) == [kept]


def test_a_wheel_that_does_not_fit_on_the_disk_leaves_nothing(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, "tiny-tool")

    def copy_half(source: Path, target: str) -> None:
        Path(target).write_bytes(source.read_bytes()[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", copy_half)
    with pytest.raises(OSError, match="No space"):
        Environment.add_private_pip_wheel(workspace, wheel)
    assert list((workspace.opened.path / "wheels").iterdir()) == []
