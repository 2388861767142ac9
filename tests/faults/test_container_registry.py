"""A registry that requires a password: right, wrong, missing; the password is never stored.

With Debian's `docker-registry` and `skopeo`.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rayjobs.containers.attempt_files import MeantImage
from rayjobs.containers.container_tools import Login
from rayjobs.containers.images import AskedImage
from rayjobs.core.errors import PrepareError
from tests.support.images import file, layer, oci_folder
from tests.support.jobs import until
from tests.unit.containers.conftest import ImageNode

# Set-up installs both. If that fails, it reports why; in CI the tests then fail.
pytestmark = pytest.mark.skipif(
    not (shutil.which("docker-registry") and shutil.which("skopeo")) and not os.environ.get("CI"),
    reason="docker-registry or skopeo is not installed: make setup",
)

USER, PASSWORD = "reader", "correct-horse"
# Of PASSWORD, by bcrypt with 16 rounds.
HASHED = "$2b$04$mLZMtJ/msVHKHE/H.gIGXO8Jx6TSYmUntKBND1XAdZPU3XB4RmNPa"
CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}", secret: of-this-test}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@dataclass(frozen=True)
class Registry:
    """A registry for this test."""

    address: str

    def name(self, what: str) -> str:
        """Return the full name of an image in the registry."""
        return f"{self.address}/{what}"

    def push(self, folder: Path, text: bytes, what: str = "team/train:1") -> None:
        """Point a tag to an image with this text."""
        oci = oci_folder(folder, [layer([file("etc/hello", text)])], tag="1")
        subprocess.run(
            ["skopeo", "copy", "--insecure-policy", "--quiet", "--dest-tls-verify=false",
             "--dest-creds", f"{USER}:{PASSWORD}", f"oci:{oci}:1", f"docker://{self.name(what)}"],
            check=True,
        )  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry with the image team/train:1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "htpasswd").write_text(f"{USER}:{HASHED}\n")
    config = tmp_path / "registry.yml"
    config.write_text(CONFIG.format(folder=tmp_path, port=port))
    server = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"localhost:{port}"

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5)
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False
        return False

    try:
        until(answers, "the registry answers")
        made = Registry(address)
        made.push(tmp_path / "oci", b"hello\n")
        yield made
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def image_node(tmp_path: Path) -> ImageNode:
    return ImageNode(tmp_path / "node")


def requested(registry: Registry, what: str, password: str | None) -> AskedImage:
    login = None if password is None else Login(registry.address, USER, password)
    return AskedImage(image=registry.name(what), login=login)


def test_correct_password_fetches_and_is_not_stored(
    registry: Registry, image_node: ImageNode
) -> None:
    wish = image_node.wish(secrets=[PASSWORD])
    found = image_node.realise(requested(registry, "team/train:1", PASSWORD), wish)
    assert (found.root / "etc/hello").read_text() == "hello\n"
    assert wish.steps == ["fetch", "unpack"]
    # Found again without the registry, and without the password.
    assert not image_node.realise(requested(registry, "team/train:1", None)).fetched
    kept = [path for path in image_node.paths.root.rglob("*") if path.is_file()]
    forms = (PASSWORD.encode(), base64.b64encode(f"{USER}:{PASSWORD}".encode()))
    assert kept and not [path for path in kept if any(form in path.read_bytes() for form in forms)]


@pytest.mark.parametrize("password", ["wrong", None])
def test_wrong_or_missing_password_is_reported_with_a_remedy(
    registry: Registry, image_node: ImageNode, password: str | None
) -> None:
    with pytest.raises(PrepareError) as caught:
        image_node.realise(requested(registry, "team/train:1", password))
    error = caught.value
    assert error.failure_class == "environment"
    assert error.is_permanent, "another attempt has the same password"
    assert f"the image '{registry.name('team/train:1')}': it cannot be fetched" in str(error)
    assert "Check container.registry" in str(error)
    assert "level=fatal" not in str(error)
    assert image_node.left_in_building == []


def test_missing_image_is_requested_only_once(registry: Registry, image_node: ImageNode) -> None:
    with pytest.raises(PrepareError, match="manifest unknown") as caught:
        image_node.realise(requested(registry, "team/train:2", PASSWORD))
    assert caught.value.is_permanent


def test_moved_tag_means_one_image_for_all_nodes_of_a_job(
    registry: Registry, image_node: ImageNode, tmp_path: Path
) -> None:
    meant: list[MeantImage] = []
    wish = image_node.wish(publish=meant.append)
    first = image_node.realise(requested(registry, "team/train:1", PASSWORD), wish)
    (meant_image,) = meant
    name = registry.name("team/train")
    assert meant_image.pinned is not None and meant_image.pinned.startswith(f"{name}@sha256:")
    registry.push(tmp_path / "moved", b"moved\n")
    other = ImageNode(tmp_path / "other")
    again = replace(requested(registry, "team/train:1", PASSWORD), meant=meant_image)
    second = other.realise(again)
    assert (second.root / "etc/hello").read_text() == "hello\n"
    assert second.digest == first.digest
    alone = ImageNode(tmp_path / "alone").realise(requested(registry, "team/train:1", PASSWORD))
    assert (alone.root / "etc/hello").read_text() == "moved\n", "a new job gets the new one"
    # The first node finds it without the registry, and still reports the resolved image.
    meant.clear()
    found = image_node.wish(publish=meant.append)
    assert not image_node.realise(requested(registry, "team/train:1", None), found).fetched
    assert meant == [MeantImage(first.digest, meant_image.pinned)]
