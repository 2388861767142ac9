"""Environments on nodes that reach no index: their files travel with the job."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rayjobs import snapshots
from rayjobs.containers.images import ReadyImage
from rayjobs.core.errors import PrepareError, UsageError
from rayjobs.environments.cache import Cache
from rayjobs.environments.work import Realised
from rayjobs.node.containers import NodeContainers
from rayjobs.node.workspaces import Workspaces
from rayjobs.protocol.attempts import ContainerRequest
from rayjobs.spec.environment import resolved
from rayjobs.spec.model import Container, JobSpec, Packages
from rayjobs.submit.environments import working
from rayjobs.submit.submitting import submit
from rayjobs.submit.vendoring import vendor
from rayjobs.submit.vendoring_images import vendor as vendor_image
from rayjobs.workspace.folder import OpenWorkspace, open_workspace
from tests.support.attempts import data_request
from tests.support.conda_channel import VERSION, Channel
from tests.support.containers import needs_containers
from tests.support.images import docker_archive, file, layer, oci_folder, tar_of
from tests.support.wheels import make_project, make_wheel
from tests.unit.environments.conftest import Builder

pytestmark = pytest.mark.timeout(300)
CODE = "import tiny_tool, its_need, own_package; print(tiny_tool.VALUE, own_package.VALUE)"


@pytest.fixture
def index(tmp_path: Path) -> list[str]:
    """The lines that request packages where there is an index."""
    make_wheel(tmp_path / "index", "tiny-tool", needs=["its-need>=1"])
    make_wheel(tmp_path / "index", "its-need", "1.5")
    project = make_project(tmp_path / "project", "own-package")
    return ["--no-index", f"--find-links {tmp_path}/index", "tiny-tool", str(project)]


def on_a_node(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch, name: str = "node"
) -> Realised:
    """Submit a job with a file of packages, and build its environment without an index."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    packages = Packages.model_validate(resolved(str(file)))
    builder = Builder(folder / name)
    with open_workspace(folder / "w", create=True) as workspace:
        spec = JobSpec(command="true", environment=packages)
        stored = submit(workspace, spec, experiment="e", wake=False).job.spec.environment
        assert isinstance(stored, Packages)
        for digest in stored.sources.values():
            shared = snapshots.NodeSnapshots(builder.node.snapshots)
            shared.ensure(digest, partial(workspace.blobs.open, snapshots.blob_key(digest)))
            place = Cache(builder.node.environments).source(digest)
            place.parent.mkdir(parents=True, exist_ok=True)
            shared.copy_into(digest, place)
    file.parent.rename(file.parent.with_name("gone"))
    given = stored.model_dump()
    found, _ = builder.build(*given.pop("pip"), **given)
    file.parent.with_name("gone").rename(file.parent)
    return found


def test_packages_in_a_folder_are_installed_without_an_index(
    tmp_path: Path, index: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "offline"
    names = vendor(Packages(pip=tuple(index)), folder).wheels
    assert [name.split("-")[0] for name in names] == ["its_need", "own_package", "tiny_tool"]
    shutil.rmtree(tmp_path / "index")
    shutil.rmtree(tmp_path / "project")
    moved = folder.rename(tmp_path / "elsewhere")
    found = on_a_node(tmp_path, moved / "requirements.txt", monkeypatch)
    output = subprocess.check_output([found.python, "-c", CODE], text=True)
    assert output == "tiny own\n"
    pinned = {line.split(" ")[0] for line in found.lock.splitlines()}
    assert {"tiny-tool==1.0", "its-need==1.5"} <= pinned


def test_unmarked_folder_of_wheels_belongs_to_the_node(
    tmp_path: Path, index: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "index" / "requirements.txt"
    file.write_text("\n".join(index[:3]))
    with pytest.raises(PrepareError, match="cannot be resolved"):
        on_a_node(tmp_path, file, monkeypatch)


def test_conda_packages_travel_with_a_job_without_contacting_a_channel(
    tmp_path: Path, index: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel(tmp_path / "original")
    channel.add_library("tiny-conda", value="of conda")
    channel.index()
    packages = Packages(
        conda=("tiny-conda",), channels=(channel.url,), pip=(*index[:2], "tiny-tool", index[-1])
    )
    made = vendor(packages, tmp_path / "offline")
    assert made.file == tmp_path / "offline/environment.yml"
    assert made.conda == (f"python={VERSION}=0", "tiny-conda=1.0=0")
    assert [name.split("-")[0] for name in made.wheels] == ["its_need", "own_package", "tiny_tool"]
    for gone in ("original", "index", "project"):
        shutil.rmtree(tmp_path / gone)
    moved = (tmp_path / "offline").rename(tmp_path / "elsewhere") / "environment.yml"
    found = [on_a_node(tmp_path, moved, monkeypatch, name) for name in ("first", "second")]
    for one in found:
        code = f"{CODE}; import tiny_conda; print(tiny_conda.VALUE)"
        assert subprocess.check_output([one.python, "-c", code], text=True) == (
            "tiny own\nof conda\n"
        )
    # The lock, which all nodes of a job share, does not name the folder on a node.
    assert found[0].lock == found[1].lock
    assert "${RAYJOBS_SOURCES}" in found[0].lock


def test_damaged_conda_package_is_not_added_to_a_folder(tmp_path: Path) -> None:
    channel = Channel(tmp_path / "original")
    package = channel.add_library("tiny-conda")
    channel.index()
    with working() as (environments, work):
        values = Packages(conda=("tiny-conda",), channels=(channel.url,)).model_dump()
        lock = asyncio.run(environments.lock(values, work))
        package.write_bytes(package.read_bytes() + b"more")
        with pytest.raises(PrepareError, match="the package has changed or is damaged"):
            asyncio.run(environments.fetch_conda(lock, tmp_path / "channel", work))


@needs_containers
@pytest.mark.parametrize("form", ["folder", "archive", "root", "engine"])
def test_an_image_travels_with_a_job_in_every_form(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text("of a test\n")
    (root / "bin").mkdir()
    (root / "bin/sh").touch(mode=0o755)
    oci = oci_folder(tmp_path / "oci", [tar_of(root)], tag="image")  # as skopeo writes it
    archive = docker_archive(tmp_path / "image.tar", [tar_of(root)])
    named = {"folder": str(oci), "archive": str(archive), "root": f"dir:{root}"}
    if form == "engine":
        programs = tmp_path / "programs"
        programs.mkdir()
        text = f"#!/bin/sh\nfor last; do :; done\ncp -r {oci} $(echo $last | cut -d: -f2)\n"
        (programs / "skopeo").write_text(text)
        (programs / "skopeo").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    saved = vendor_image(named.get(form, "registry.example/made:1"), tmp_path / "offline")
    with open_workspace(tmp_path / "w", create=True) as workspace:
        spec = JobSpec(command="true", container=Container(image=str(tmp_path / "offline")))
        stored = submit(workspace, spec, experiment="e", wake=False).job.spec.container
        assert stored is not None
        ((name, digest),) = stored.sources.items()
        assert name == stored.image
        assert workspace.blobs.exists(snapshots.blob_key(digest))
        for gone in (root, oci, tmp_path / "offline"):
            shutil.rmtree(gone)
        found = [ready(tmp_path / "node", workspace, stored) for _ in range(2)]
        assert workspace.store.prune_view().jobs[0].sources == (digest,)
    assert [one.digest for one in found] == [saved.digest] * 2
    assert [one.fetched for one in found] == [True, False]
    assert (found[0].root / "etc/os-release").read_text() == "of a test\n"


def ready(folder: Path, workspace: OpenWorkspace, container: Container) -> ReadyImage:
    """Prepare the image of a job as a restarted node does."""
    node = NodeContainers(
        folder / "images",
        Workspaces(lambda _path: workspace, shares_disk=True),
        snapshots.NodeSnapshots(folder / "snapshots"),
    )
    node._report = lambda *_: None  # type: ignore[method-assign]
    root = Path(tempfile.mkdtemp(prefix="attempt-", dir=folder.parent))
    (root / "tmp").mkdir()
    request = data_request(root)
    request = replace(
        request,
        plan=replace(request.plan, kind="command"),
        container=ContainerRequest.from_json(container.model_dump()),
    )
    found = asyncio.run(node.bring(request))
    assert found is not None
    return found


def test_damaged_image_is_not_added_to_a_folder(tmp_path: Path) -> None:
    oci = oci_folder(tmp_path / "oci", [layer([file("a", b"a")])])
    every = (oci / "blobs/sha256").iterdir()
    (blob,) = [one for one in every if one.read_bytes().startswith(b"\x1f\x8b")]  # of gzip
    blob.write_bytes(blob.read_bytes()[:-4] + b"xxxx")
    with pytest.raises(PrepareError, match="damaged"):
        vendor_image(str(oci), tmp_path / "offline")
    assert not (tmp_path / "offline").exists()
    assert not list(tmp_path.glob(".vendor-*"))


def test_failed_fetch_leaves_no_folder(tmp_path: Path, index: list[str]) -> None:
    with pytest.raises(PrepareError, match="not-there"):
        vendor(Packages(pip=(*index, "not-there")), tmp_path / "offline")
    by_program = Packages(conda=("a",), channels=("file:///a",), conda_command="micromamba")
    with pytest.raises(UsageError, match="packages of micromamba cannot be put"):
        vendor(by_program, tmp_path / "offline")
    assert not (tmp_path / "offline").exists()
    assert not list(tmp_path.glob(".vendor-*"))
    (tmp_path / "offline").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        vendor(Packages(pip=tuple(index)), tmp_path / "offline")
