"""Images on a node: fetched and unpacked once, completely or not at all, and found again."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rayjobs.containers import asking, container_tools, prune, unpacking
from rayjobs.containers.attempt_files import MeantImage
from rayjobs.containers.images import AskedImage, Images, ReadyImage
from rayjobs.containers.reference import Kind, parse
from rayjobs.core.errors import PrepareError
from rayjobs.core.files import locked_if_free
from rayjobs.core.safe_delete import OwnFolder
from rayjobs.launch.leftovers import find_leftovers
from rayjobs.node.containers import NodeContainers
from rayjobs.node.workspaces import Workspaces
from rayjobs.snapshots import NodeSnapshots
from rayjobs.target.node_settings import NodeSettings
from rayjobs.workspace.folder import OpenWorkspace
from tests.support.containers import image, needs_containers
from tests.support.images import docker_archive, file, layer, oci_folder, tar_of
from tests.support.jobs import until
from tests.unit.containers.conftest import ImageNode, Wish

__all__ = ["image"]

pytestmark = [needs_containers, pytest.mark.long]
SMALL = layer([file("etc/os-release", b"small\n"), file("bin/tool", b"x", mode=0o755)])


@pytest.fixture
def oci(tmp_path: Path) -> Path:
    return oci_folder(tmp_path / "oci", [SMALL])


def fake_engine(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a program with the name of an engine, and make its folder the whole PATH."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    path = programs / name
    path.write_text(f"#!{sys.executable}\nimport os, pathlib, sys, time\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return path


# -- image names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "registry", "full"),
    [
        ("python", "python:latest", "docker.io", "docker.io/library/python:latest"),
        ("python:3.13", "python:3.13", "docker.io", "docker.io/library/python:3.13"),
        ("team/train:1", "team/train:1", "docker.io", "docker.io/team/train:1"),
        ("docker://team/train", "team/train:latest", "docker.io", "docker.io/team/train:latest"),
        ("localhost:5000/a:1", "localhost:5000/a:1", "localhost:5000", "localhost:5000/a:1"),
        ("reg.example/a/b:1", "reg.example/a/b:1", "reg.example", "reg.example/a/b:1"),
    ],
)
def test_names_of_images(text: str, name: str, registry: str, full: str) -> None:
    found = parse(text)
    assert (found.kind, found.name, found.registry, found.full_name) == (
        Kind.NAME, name, registry, full,
    )  # fmt: skip


def test_a_digest_pins_a_name() -> None:
    assert parse(f"python@sha256:{'0' * 64}").is_pinned
    assert not parse("python:3.13").is_pinned


@pytest.mark.parametrize(
    "text", ["no/../name", "UPPER/case path", "tar:relative.tar", "/not/there"]
)
def test_invalid_image_is_refused_with_a_suggestion(text: str) -> None:
    with pytest.raises(PrepareError, match="Give a name such as") as caught:
        parse(text)
    assert caught.value.is_permanent


# -- unpacked once -------------------------------------------------------------------------------


def test_an_image_is_unpacked_once_whatever_its_form(
    image_node: ImageNode, oci: Path, tmp_path: Path
) -> None:
    first = image_node.wish()
    one = image_node.realise(str(oci), first)
    assert one.fetched and first.steps == ["unpack"]
    assert (one.root / "etc/os-release").read_text() == "small\n"
    assert one.variables["FROM_THE_IMAGE"] == "yes"
    again = image_node.wish()
    two = image_node.realise(f"oci:{oci}", again)
    assert (two.key, two.fetched, again.steps) == (one.key, False, [])
    assert again.log == ""
    tar = tmp_path / "root.tar"
    tar.write_bytes(SMALL)
    three = image_node.realise(f"tar:{tar}")
    assert three.key != one.key
    archive = docker_archive(tmp_path / "docker.tar", [SMALL])
    assert image_node.realise(str(archive)).root.is_dir()
    assert image_node.left_in_building == []


def test_nodes_that_have_different_images_under_a_name_are_refused(
    image_node: ImageNode, oci: Path
) -> None:
    meant: list[MeantImage] = []
    found = image_node.realise(str(oci), image_node.wish(publish=meant.append))
    assert meant == [MeantImage(found.digest)]
    same = AskedImage(image=str(oci), meant=meant[0])
    assert image_node.realise(same).digest == found.digest
    other = AskedImage(image=str(oci), meant=MeantImage("sha256:another"))
    error = failed(image_node, other)
    assert f"differs on this node ({found.digest}) from the one on" in str(error)
    assert error.is_permanent


def test_file_that_is_not_an_archive_is_named_in_one_sentence(
    image_node: ImageNode, tmp_path: Path
) -> None:
    path = tmp_path / "not-an-image.tar"
    path.write_bytes(os.urandom(3_000))
    with pytest.raises(PrepareError) as caught:
        image_node.realise(str(path))
    assert str(caught.value) == (
        f"the image {str(path)!r} cannot be used: it is not a readable archive: file could not be "
        f"opened successfully"
    )


def test_a_file_that_was_replaced_under_its_name_is_another_image(
    image_node: ImageNode, tmp_path: Path
) -> None:
    tar = tmp_path / "root.tar"
    tar.write_bytes(SMALL)
    one = image_node.realise(str(tar))
    tar.write_bytes(layer([file("etc/os-release", b"other\n")]))
    two = image_node.realise(str(tar))
    assert two.key != one.key
    assert (two.root / "etc/os-release").read_text() == "other\n"


@pytest.mark.parametrize("form", ["oci", "archive", "tar", "packed tar"])
def test_an_image_that_unpacks_to_more_than_the_node_allows_is_refused_and_leaves_nothing(
    image_node: ImageNode, tmp_path: Path, form: str
) -> None:
    bomb = layer([file("etc/os-release", b"small\n"), file("zeros", bytes(3 * 2**20))])
    source = tmp_path / "bomb"
    if form == "oci":
        oci_folder(source, [SMALL, bomb])
        assert sum(path.stat().st_size for path in source.rglob("*")) < 2**16
    elif form == "archive":
        docker_archive(source, [SMALL, bomb])
    else:
        source.write_bytes(gzip.compress(bomb) if form == "packed tar" else bomb)
    settings = NodeSettings.read("lab", {"RAYJOBS_IMAGE_MOST_GIB": str(2 / 1024)})
    image_node.most_bytes = int(settings.image_most_gib * 2**30)
    with pytest.raises(PrepareError) as caught:
        image_node.realise(str(source))
    assert caught.value.failure_class == "environment"
    assert caught.value.is_permanent
    problem = "it unpacks to more than 2 MiB. If it may be that large, set RAYJOBS_IMAGE_MOST_GIB "
    assert problem in str(caught.value)
    assert image_node.left_in_building == []
    assert not list(image_node.cache.root.glob("*/image.json"))
    image_node.most_bytes = 2**30
    assert (image_node.realise(str(source)).root / "zeros").stat().st_size == 3 * 2**20


def test_a_folder_is_used_where_it_is_and_stays_unchanged(
    image_node: ImageNode, image: Path
) -> None:
    before = sorted(os.listdir(image))
    found = image_node.realise(str(image))
    assert (found.root, found.key) == (image, None)
    assert found.answer.python == "/usr/local/bin/python"
    assert found.answer.python_version == ".".join(map(str, sys.version_info[:3]))
    assert found.answer.facts["packages"] == []
    assert sorted(os.listdir(image)) == before


def paths_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_image_queries_without_overlays_write_to_no_cache_or_user_folder(
    image_node: ImageNode, image: Path, tmp_path: Path
) -> None:
    """Off switch: `writable_root` returns the image itself."""
    before = paths_below(image)
    folder = image_node.realise(str(image), image_node.wish(overlay=False))
    assert folder.answer.python == "/usr/local/bin/python"
    assert paths_below(image) == before
    wish = image_node.wish(overlay=False)
    cached = image_node.realise(str(oci_folder(tmp_path / "oci", [tar_of(image)])), wish)
    assert cached.answer.python == "/usr/local/bin/python"
    assert paths_below(cached.root) == before
    assert (wish.work.paths.container / "image/etc").is_dir()


def test_image_query_ends_with_its_job(image_node: ImageNode, image: Path) -> None:
    wish = image_node.wish()
    begun = wish.work.paths.tmp

    async def stopped() -> None:
        words = ["/usr/local/bin/python", "-c", "import time; time.sleep(600)"]
        asked = asking.run_in(image, {}, words, wish.work.paths, wish.work.control)
        work = asyncio.ensure_future(asked)
        while not list(begun.glob("ask-*")) and not work.done():
            await asyncio.sleep(0.01)
        wish.work.control.stopped.set()
        await work

    with pytest.raises(PrepareError, match="the job's end was requested"):
        asyncio.run(stopped())


def test_image_without_python_is_reported(image_node: ImageNode, oci: Path) -> None:
    assert image_node.realise(str(oci)).answer.why == "there is no python on its PATH"


def test_concurrent_jobs_unpack_a_new_image_once(image_node: ImageNode, oci: Path) -> None:
    """Off switch: `locked_if_free` in `Images._alone` gives every caller the lock."""
    wishes = [image_node.wish() for _ in range(3)]

    async def all_at_once() -> set[str | None]:
        nodes = [Images(image_node.paths.images) for _ in wishes]
        found = await asyncio.gather(
            *(one.realise(AskedImage(image=str(oci)), wish.work)
              for one, wish in zip(nodes, wishes, strict=True))
        )  # fmt: skip
        return {one.key for one in found}

    assert len(asyncio.run(all_at_once())) == 1
    assert [wish.steps.count("unpack") for wish in wishes].count(1) == 1
    assert sum(wish.log.count("layer 1 of 1") for wish in wishes) == 1


# -- what goes wrong -----------------------------------------------------------------------------


def failed(
    image_node: ImageNode, image: str | AskedImage, wish: Wish | None = None
) -> PrepareError:
    with pytest.raises(PrepareError) as caught:
        image_node.realise(image, wish)
    assert image_node.left_in_building == []
    return caught.value


def test_an_image_that_leads_outside_fails_as_environment_and_is_not_kept(
    image_node: ImageNode, tmp_path: Path
) -> None:
    bad = oci_folder(tmp_path / "bad", [layer([file("a"), file("../../evil")])])
    error = failed(image_node, str(bad))
    assert error.failure_class == "environment"
    assert "leads out of the image" in str(error)
    assert not list(image_node.cache.root.glob("*/rootfs"))


def test_an_unpack_that_is_killed_is_never_used(
    image_node: ImageNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off switch: `Images._unpacked` moves the folder to its place although the program failed."""
    # Thousands of files: unpacking them takes far longer than one round of the killer's loop.
    many = [layer([file(f"{at}/{n}", b"x" * 2_000) for n in range(500)]) for at in range(20)]
    slow = oci_folder(tmp_path / "slow", many, compress=False)
    wish = image_node.wish()
    killer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(f"""
            import os, signal, time
            from rayjobs.launch.leftovers import find_leftovers
            print("looking", flush=True)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                for stat in find_leftovers({wish.work.control.marker!r}):
                    words = open(f"/proc/{{stat.pid}}/cmdline").read()
                    if "unpacking.py" in words and "tied.py" not in words:
                        os.kill(stat.pid, signal.SIGKILL)
                        raise SystemExit
                time.sleep(0.001)
        """)],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with killer:
        assert killer.stdout is not None
        assert killer.stdout.readline() == b"looking\n"
        try:
            error = failed(image_node, str(slow), wish)
        finally:
            killer.kill()
    assert error.failure_class == "system"
    assert "was killed (signal 9)" in str(error)
    assert not list(image_node.cache.root.glob("*/rootfs"))
    assert image_node.realise(str(slow)).fetched
    assert not find_leftovers(wish.work.control.marker)


def test_full_disk_is_a_storage_failure_and_leaves_nothing(
    image_node: ImageNode, tmp_path: Path
) -> None:
    """On a file system of 2 MiB, in the mount namespace of a separate process."""
    big = oci_folder(tmp_path / "big", [layer([file("big", os.urandom(4 * 2**20))])])
    script = f"""
import asyncio, os
from pathlib import Path
from rayjobs.injob import kernel
from rayjobs.core.errors import PrepareError
from tests.unit.containers.conftest import ImageNode
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
node = Path({str(tmp_path / "small")!r})
(node / "images").mkdir(parents=True)
kernel.mount("tmpfs", str(node / "images"), "tmpfs", 0, "size=2m")
try:
    ImageNode(node).realise({str(big)!r})
except PrepareError as error:
    print(error.failure_class, "|", error, "|", os.listdir(node / "images/building"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("storage | "), done
    assert "full" in done.stdout and done.stdout.rstrip().endswith("| []")


def test_an_engine_that_is_killed_during_a_fetch_leaves_nothing(
    image_node: ImageNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(
        tmp_path, "skopeo", "os.makedirs(sys.argv[-1].split(':')[1]); os.kill(os.getpid(), 9)",
        monkeypatch,
    )  # fmt: skip
    error = failed(image_node, "registry.example/team/train:1")
    assert error.failure_class == "system"
    assert "was killed (signal 9)" in str(error)
    assert image_node.cache.known("") is None


def test_a_fetch_ends_with_its_job(
    image_node: ImageNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    fake_engine(tmp_path, "skopeo", f"open({str(begun)!r}, 'w').close(); time.sleep(600)",
                monkeypatch)  # fmt: skip
    wish = image_node.wish()

    async def stopped() -> None:
        request = AskedImage(image="registry.example/team/train:1")
        work = asyncio.ensure_future(Images(image_node.paths.images).realise(request, wish.work))
        while not begun.exists():
            await asyncio.sleep(0.01)
        wish.work.control.stopped.set()
        await work

    with pytest.raises(PrepareError, match="the job's end was requested"):
        asyncio.run(stopped())
    until(lambda: not find_leftovers(wish.work.control.marker), "the engine has ended")
    assert image_node.left_in_building == []


def test_node_without_engines_names_three_remedies(
    image_node: ImageNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failed(image_node, "python:3.13")
    assert "this node has none of skopeo, podman, docker" in str(error)
    assert "an archive, an OCI folder or a root file system" in str(error)
    dockerfile = AskedImage(dockerfile="FROM scratch\n", context=tmp_path)
    assert "neither podman nor buildah" in str(failed(image_node, dockerfile))


def test_an_image_that_is_built_is_called_so(
    image_node: ImageNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine(tmp_path, "podman", "sys.exit('Error: no such base')", monkeypatch)
    wish = image_node.wish()
    asked = AskedImage(dockerfile="FROM nothing\n", context=tmp_path)
    error = str(failed(image_node, asked, wish))
    assert error == "the image of the job's Dockerfile: it cannot be built: no such base"
    assert wish.messages[0][0] == "building the image of the job's Dockerfile with podman"


def test_image_is_fetched_once_unless_a_refresh_is_requested(
    image_node: ImageNode, oci: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    fake_engine(
        tmp_path,
        "skopeo",
        f"""
        import json, shutil
        if "inspect" in sys.argv:
            assert "hunter2" not in " ".join(sys.argv)
            sys.exit("the registry does not say")
        with open({str(calls)!r}, "a") as stream:
            stream.write(" ".join(sys.argv[1:]) + "\\n")
        target = sys.argv[-1].removeprefix("oci:").removesuffix(":image")
        shutil.copytree({str(oci)!r}, target)
        index = pathlib.Path(target) / "index.json"
        values = json.loads(index.read_text())
        values["manifests"][0]["annotations"] = {{"org.opencontainers.image.ref.name": "image"}}
        index.write_text(json.dumps(values))
        """,
        monkeypatch,
    )
    login = container_tools.Login("registry.example", "reader", "hunter2")
    wish = image_node.wish(secrets=["hunter2"])
    request = AskedImage(image="registry.example/team/train:1", login=login)
    one = image_node.realise(request, wish)
    assert one.fetched and wish.steps == ["fetch", "unpack"]
    assert not image_node.realise(request).fetched
    lines = calls.read_text().splitlines()
    assert len(lines) == 1
    assert "hunter2" not in lines[0] and "--authfile" in lines[0]
    assert lines[0].split()[-2] == "docker://registry.example/team/train:1"
    assert "hunter2" not in wish.log
    assert not list(image_node.cache.root.rglob("login")), "the password does not stay"
    always = image_node.wish()
    request = AskedImage(image="registry.example/team/train:1", always_pull=True)
    assert image_node.realise(request, always).key == one.key
    assert always.steps == ["fetch"], "the same image is not unpacked again"
    assert len(calls.read_text().splitlines()) == 2


# -- prune ---------------------------------------------------------------------------------------


def test_unused_old_images_are_pruned_and_used_ones_stay(
    image_node: ImageNode, oci: Path, tmp_path: Path
) -> None:
    used = image_node.realise(str(oci))
    tar = tmp_path / "root.tar"
    tar.write_bytes(SMALL)
    lone = image_node.wish()
    free = image_node.realise(str(tar), lone)
    lone.work.paths.image.unlink()
    assert used.key and free.key
    (image_node.cache.building / f"{free.key}-1-1").mkdir()
    later = time.time() + 1
    root = image_node.paths.root
    with OwnFolder(root) as folder:
        found = {one.name: one.stays for one in prune.unused(root, folder, later)}
        assert found[f"images/{used.key}"].endswith("uses it")
        assert found[f"images/{free.key}"] == ""
        for name, stays in found.items():
            if not stays:
                assert prune.remove(folder, name, later).spared == 0
        assert prune.remove(folder, f"images/{used.key}", later).spared == 1
    assert used.root.is_dir()
    assert not (image_node.cache.folder(free.key)).exists()
    assert image_node.left_in_building == []
    assert image_node.cache.record(used.key)["digest"] == used.digest


def test_image_pruned_during_lookup_is_fetched_again(image_node: ImageNode, oci: Path) -> None:
    first = image_node.wish()
    known = image_node.realise(str(oci), first)
    first.work.paths.image.unlink()
    assert known.key
    wish = image_node.wish()

    async def meets_prune() -> ReadyImage:
        images = Images(image_node.paths.images)
        with locked_if_free(image_node.cache.lock_of(str(known.key))) as alone:
            assert alone
            work = asyncio.ensure_future(images.realise(AskedImage(image=str(oci)), wish.work))
            while "wait" not in wish.steps and not work.done():
                await asyncio.sleep(0.01)
            with OwnFolder(image_node.cache.root) as folder:
                folder.remove(str(known.key))
        return await work

    found = asyncio.run(meets_prune())
    assert (found.key, found.fetched) == (known.key, True)
    assert (found.root / "etc/os-release").read_text() == "small\n"
    assert image_node.cache.used_by()[str(found.key)]


def _no_workspace(path: str) -> OpenWorkspace:
    raise AssertionError(f"nothing needs the workspace {path}")


def test_passwords_of_fetches_that_died_with_their_agent_are_removed(
    image_node: ImageNode,
) -> None:
    cache = image_node.cache
    cache.make()
    dead, alive = (cache.begin(letter * 32) for letter in "ab")
    for folder in (dead, alive):
        container_tools.Login("registry.example", "reader", "hunter2").write(folder / "login")
    node = NodeContainers(
        cache.root,
        Workspaces(_no_workspace, shares_disk=True),
        NodeSnapshots(image_node.paths.snapshots),
    )
    with locked_if_free(cache.lock_of("b" * 32)):
        node.prune()
        assert not (dead / "login").exists()
        assert (alive / "login/config.json").exists(), "its fetch still runs"
    node.prune()
    assert not (alive / "login").exists()


def test_unpacking_program_reports_omitted_files(tmp_path: Path, image: Path) -> None:
    folder = oci_folder(
        tmp_path / "oci", [tar_of(image / "etc"), layer([file("su", b"x", mode=0o4755)])]
    )
    target = tmp_path / "out"
    target.mkdir()
    done = subprocess.run(
        [sys.executable, unpacking.__file__, str(folder), str(target), str(2**30)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(unpacking.__file__).parents[2])},
    )
    assert "layer 2 of 2: 1 file in" in done.stdout
    assert "1 program without the set-user-ID bit" in done.stdout
