"""Container settings of a job: image, size of /dev/shm, registry, arguments of docker run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.errors import SpecError, UsageError
from rayjobs.spec import container_arguments
from rayjobs.spec.container_arguments import Volume
from rayjobs.spec.container_files import anchored_container
from rayjobs.spec.file import build_spec, dump_spec, load_spec_file, load_spec_text, merge
from rayjobs.spec.model import Container


def _built(container: object) -> Container:
    spec = build_spec({"script": "train.py", "container": container})
    assert spec.container is not None
    return spec.container


def test_an_image_alone_may_be_text() -> None:
    assert _built("python:3.13").image == "python:3.13"
    assert _built({"image": "python:3.13"}) == _built("python:3.13")


def test_dev_shm_has_the_requested_size_or_two_gib() -> None:
    assert _built("x").shm_bytes == 2 * 2**30
    assert _built({"image": "x", "shm_size": "64m"}).shm_bytes == 64 * 2**20
    assert _built({"image": "x", "shm_size": 67108864}).shm_bytes == 64 * 2**20
    assert _built({"image": "x", "arguments": ["--shm-size", "1g"]}).shm_bytes == 2**30


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"shm_size": "1g"}, "names no image"),
        ({"image": "x", "dockerfile": "FROM y\n"}, "an image and a Dockerfile"),
        ({"image": "x", "shm_size": "much"}, "is not a valid size"),
        ({"image": "x", "shm_size": "0"}, "above zero"),
        ({"image": "x", "shm_size": "1g", "arguments": ["--shm-size=2g"]}, "once"),
        ({"image": "x", "shm_size": "1g", "arguments": ["--ipc=host"]}, "size of its own"),
        ({"image": "x", "arguments": ["--privileged"]}, "--privileged cannot be honored"),
        ({"image": "x", "registry": {"username": "me"}}, "together"),
        ({"image": "x", "shm": "1g"}, "Did you mean `shm_"),
    ],
)
def test_invalid_container_settings_are_reported_with_a_remedy(
    container: object, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        _built(container)


def test_a_password_is_a_reference_and_its_value_is_never_shown() -> None:
    with pytest.raises(SpecError) as caught:
        _built({"image": "x", "registry": {"username": "me", "password": "hunter2"}})
    assert "is not a reference" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    found = _built(
        {"image": "x", "registry": {"username": "me", "password": "RAYJOBS_SECRET_REGISTRY"}}
    )
    assert found.registry is not None
    assert found.registry.password is not None
    assert found.registry.password.env == "RAYJOBS_SECRET_REGISTRY"


def test_arguments_of_docker_run_that_can_be_honored() -> None:
    found = container_arguments.parse(
        ["-e", "A=1", "--env=B=x=y", "-v/data:/in:ro", "--mount", "type=bind,src=/a,dst=/b",
         "--tmpfs", "/scratch:size=1m", "--ulimit", "memlock=-1", "--gpus", "all", "--rm", "-it",
         "--net=host", "--ipc", "host", "--pull=always"]
    )  # fmt: skip
    assert found.variables == {"A": "1", "B": "x=y"}
    assert found.volumes == (Volume("/data", "/in", True), Volume("/a", "/b"))
    assert found.tmpfs == (("/scratch", 2**20),)
    assert found.ulimits == (("memlock", -1, -1),)
    assert found.host_ipc
    assert found.always_pull


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "2g"], "set resources.memory"),
        (["-m2g"], "set resources.memory"),
        (["--user", "1000"], "runs as the user of the target"),
        (["--network", "bridge"], "the network of its node"),
        (["-v", "named:/data"], "two absolute paths"),
        (["-v", "/a/../etc:/data"], r"has `\.\.` in it"),
        (["-v", "/a:/dev"], "cannot replace '/dev'"),
        (["--tmpfs", "/"], "cannot replace '/'"),
        (["--tmpfs", "/a/../etc"], r"has `\.\.` in it"),
        (["--mount", "type=tmpfs,target=/proc/"], "cannot replace '/proc/'"),
        (["--mount", "type=tmpfs,target=/a/../dev"], r"has `\.\.` in it"),
        (["-e", "HOME"], "has no value"),
        (["--ulimit", "cpu=1"], "--ulimit 'cpu=1' cannot be honored"),
        (["--frobnicate"], "--frobnicate cannot be honored"),
        (["python"], "is not an option of `docker run`"),
        (["--shm-size"], "needs a value"),
    ],
)
def test_other_docker_arguments_are_refused_in_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        container_arguments.parse(words)


@pytest.mark.parametrize(
    ("typed", "is_path"),
    [("train.tar", True), ("images/train.TGZ", True), ("train:2", False), ("tar/train", False)],
)
def test_archive_is_a_file_and_not_an_image_name(typed: str, is_path: bool, tmp_path: Path) -> None:
    expected = str(tmp_path / typed) if is_path else typed
    assert anchored_container(typed, tmp_path) == expected


def test_a_job_file_names_paths_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    file = tmp_path / "job.yaml"
    file.write_text("script: train.py\ncontainer:\n  image: oci:./images/train\n")
    assert load_spec_file(file)["container"]["image"] == f"oci:{tmp_path}/images/train"
    file.write_text("script: train.py\ncontainer:\n  dockerfile: Dockerfile\n")
    assert load_spec_file(file)["container"]["dockerfile"] == "FROM scratch\nCOPY . /\n"


def test_option_replaces_the_image_source_of_a_file() -> None:
    below = {"script": "a.py", "container": {"dockerfile": "FROM x\n", "shm_size": "1g"}}
    merged = merge(below, {"container": {"image": "y"}})
    assert build_spec(merged).container == Container(image="y", shm_mib=1024.0)


def test_a_spec_with_a_container_is_written_and_read_again() -> None:
    spec = build_spec(
        {"script": "a.py", "container": {"image": "y", "shm_size": "1g", "arguments": ["--rm"]}}
    )
    assert build_spec(load_spec_text(dump_spec(spec))) == spec
