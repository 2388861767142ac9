"""Images of the node's own engine, and Dockerfiles that it builds: with a real podman."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayjobs.containers.images import AskedImage
from rayjobs.core.errors import PrepareError
from tests.support.images import file, layer
from tests.unit.containers.conftest import ImageNode

# Set-up installs it. If that fails, it reports why; in CI the tests then fail.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("podman") is None and not os.environ.get("CI"),
        reason="podman is not installed: make setup",
    ),
]
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Podman with a separate store for this test."""
    settings = tmp_path / "storage.conf"
    settings.write_text(STORAGE.format(tmp_path))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(settings))
    yield tmp_path
    subprocess.run(["podman", "system", "reset", "--force"], capture_output=True, check=True)


@pytest.fixture
def image_node(tmp_path: Path) -> ImageNode:
    return ImageNode(tmp_path / "node")


def kept(folder: Path, text: bytes) -> None:
    """Give podman an image localhost/team/train:1 whose file has this text."""
    tar = folder / "root.tar"
    tar.write_bytes(layer([file("etc/hello", text)]))
    words = [
        "podman",
        "import",
        "--quiet",
        "-c",
        "ENV OF=podman",
        str(tar),
        "localhost/team/train:1",
    ]
    subprocess.run(words, check=True, capture_output=True)


def test_podman_image_is_used_and_reloaded_after_replacement(
    podman: Path, image_node: ImageNode
) -> None:
    kept(podman, b"one\n")
    wish = image_node.wish()
    first = image_node.realise("localhost/team/train:1", wish)
    assert (first.root / "etc/hello").read_text() == "one\n"
    assert first.variables["OF"] == "podman"
    assert wish.steps == ["fetch", "unpack"]
    assert "podman save" in wish.log
    assert not image_node.realise("localhost/team/train:1").fetched
    kept(podman, b"two\n")
    second = image_node.realise("localhost/team/train:1")
    assert second.fetched
    assert (second.root / "etc/hello").read_text() == "two\n"


def test_a_dockerfile_is_built_once_for_one_source_directory(
    podman: Path, image_node: ImageNode
) -> None:
    context = podman / "context"
    context.mkdir()
    (context / "hello").write_text("of the source directory\n")
    text = "FROM scratch\nENV OF=dockerfile\nCOPY hello /etc/hello\n"
    image = AskedImage(dockerfile=text, context=context, context_digest="sha256:1")
    first = image_node.realise(image)
    assert (first.root / "etc/hello").read_text() == "of the source directory\n"
    assert first.variables["OF"] == "dockerfile"
    assert not image_node.realise(image).fetched
    (context / "hello").write_text("changed\n")
    changed = AskedImage(dockerfile=text, context=context, context_digest="sha256:2")
    second = image_node.realise(changed)
    assert (second.root / "etc/hello").read_text() == "changed\n"
    left = subprocess.run(
        ["podman", "images", "--format", "{{.Repository}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rayjobs" not in left.stdout, "podman keeps layers for the next build, but no image"
    bad = AskedImage(dockerfile="FROM scratch\nCOPY missing /x\n", context=context)
    with pytest.raises(PrepareError, match="missing") as caught:
        image_node.realise(bad)
    assert caught.value.failure_class == "environment"
    assert image_node.left_in_building == []
