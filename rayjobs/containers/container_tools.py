"""Fetches images and builds Dockerfiles with a node's container tools: skopeo, podman, docker.

A tool only writes an image to files; it never runs a process of a job.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayjobs.containers.reference import DEFAULT_REGISTRY, Reference
from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.core.files import write_atomic
from rayjobs.injob.lazy_dataclass import dataclass

FETCHERS = ("skopeo", "podman", "docker")
BUILDERS = ("podman", "buildah")
KEEPERS = ("docker", "podman")  # engines that store images
ASK_S = 20.0
_KEPT = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
_KEPT_PREFIXES = ("XDG_", "DOCKER_", "CONTAINER", "REGISTRY_", "STORAGE_", "BUILDAH_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_POLICIES = ("/etc/containers/policy.json", "~/.config/containers/policy.json")
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MESSAGE = re.compile(r'\bmsg="((?:[^"\\]|\\.)*)"')
_FINAL = ("unauthorized", "authentication required", "manifest unknown", "access denied",
          "incorrect username or password", "name unknown", "not found")  # fmt: skip


@dataclass(frozen=True)
class Login:
    """A login for a registry.

    Attributes:
        registry: Host name and port.
    """

    registry: str
    username: str
    password: str

    def write(self, folder: Path) -> Path:
        """Write it in the engines' format, readable only by the owner; return the file."""
        name = "https://index.docker.io/v1/" if self.registry == DEFAULT_REGISTRY else self.registry
        secret = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / "config.json"
        write_atomic(path, json.dumps({"auths": {name: {"auth": secret}}}), mode=0o600)
        return path


@dataclass(frozen=True)
class Step:
    """A program to run, with variables in addition to the engines' own."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]


def _path() -> str:
    return os.environ.get("PATH", os.defpath)


def available(names: Sequence[str]) -> list[str]:
    """Return those of these programs that the node has, in the same order."""
    path = _path()
    return [name for name in names if shutil.which(name, path=path)]


def program(name: str) -> str:
    """Return the path of a program that `available` named."""
    return shutil.which(name, path=_path()) or name


def variables() -> dict[str, str]:
    """Return the environment variables of an engine."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or name.lower() in _PROXIES
    }
    return {**found, "PATH": _path()}


def kept_by(reference: Reference) -> tuple[str, str] | None:
    """Return an engine that already has an image of this name, and the image's id. Blocks."""
    for name in available(KEEPERS):
        try:
            done = subprocess.run(
                [program(name), "image", "inspect", "--format", "{{.Id}}", reference.name],
                env=variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=ASK_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue  # an engine that does not answer cannot provide the image
        found = done.stdout.strip()
        if done.returncode == 0 and found:
            return name, found if ":" in found else f"sha256:{found}"
    return None


def words_to_pin(reference: Reference, login: Path | None) -> list[str] | None:
    """Return the command that prints a name's digest in its registry; None if there is none."""
    if available(FETCHERS)[:1] != ["skopeo"]:
        return None
    options = ["--authfile", str(login)] if login else []
    options += ["--tls-verify=false"] if _is_plain(reference) else []
    words = [*_skopeo(), "inspect", "--no-tags", *options, "--format", "{{.Digest}}"]
    return [*words, f"docker://{reference.full_name}"]


def pinned(reference: Reference, output: str) -> Reference | None:
    """Return a name with the digest in the output of `words_to_pin`; None if it has no digest."""
    digest = output.strip()
    return reference.pinned_to(digest) if _DIGEST.fullmatch(digest) else None


def _skopeo() -> list[str]:
    has_policy = any(Path(one).expanduser().exists() for one in _POLICIES)
    return [program("skopeo"), *([] if has_policy else ["--insecure-policy"])]


def _is_plain(reference: Reference) -> bool:
    """Whether to connect to a registry without TLS, by Docker's rule."""
    return _LOCAL.fullmatch(reference.registry) is not None


def steps_to_save(engine: str, name: str, target: Path) -> list[Step]:
    """Return the steps with which an engine saves a stored image as an archive at `target`."""
    if engine == "docker":
        return [Step((program("docker"), "save", "-o", str(target), name), {})]
    save = ("save", "--quiet", "--format", "docker-archive", "-o", str(target), name)
    return [Step((program("podman"), *save), {})]


def steps_to_fetch(reference: Reference, target: Path, login: Path | None) -> list[Step]:
    """Return the steps that fetch an image from its registry into `target` (folder or archive).

    Raises:
        PrepareError: class ``environment``: the node has no program for this.
    """
    found = available(FETCHERS)
    if not found:
        raise PrepareError(
            f"the image {reference.text!r} cannot be fetched: this node has none of "
            f"{', '.join(FETCHERS)}. Install one (sudo apt-get install skopeo), or give the image "
            f"as an archive, an OCI folder or a root file system",
            failure_class=FailureClass.ENVIRONMENT,
            is_permanent=True,
        )
    engine, path = found[0], program(found[0])
    is_plain = _is_plain(reference)
    if engine == "skopeo":
        words = [*_skopeo(), "copy", "--quiet"]
        words += ["--authfile", str(login)] if login else []
        words += ["--src-tls-verify=false"] if is_plain else []
        return [Step((*words, f"docker://{reference.full_name}", f"oci:{target}:image"), {})]
    if engine == "podman":
        words = [path, "pull", "--quiet", *(["--authfile", str(login)] if login else [])]
        words += ["--tls-verify=false"] if is_plain else []
        pull = Step((*words, reference.full_name), {})
        return [pull, *steps_to_save("podman", reference.full_name, target)]
    env = {"DOCKER_CONFIG": str(login.parent)} if login else {}
    pull = Step((path, "pull", "--quiet", reference.name), env)
    return [pull, *steps_to_save("docker", reference.name, target)]


def steps_to_build(dockerfile: Path, context: Path, name: str, login: Path | None) -> list[Step]:
    """Return the steps that build a Dockerfile into an image `name` of an engine.

    Raises:
        PrepareError: class ``environment``: the node has neither podman nor buildah.
    """
    found = available(BUILDERS)
    if not found:
        raise PrepareError(
            "the job's Dockerfile cannot be built: this node has neither podman nor buildah. "
            "Install one (sudo apt-get install podman), or build the image elsewhere and name it "
            "with `image`",
            failure_class=FailureClass.ENVIRONMENT,
            is_permanent=True,
        )
    words = [program(found[0]), "build", "--isolation", "chroot", "--network", "host"]
    words += ["--authfile", str(login)] if login else []
    return [Step((*words, "-f", str(dockerfile), "-t", name, str(context)), {})]


def steps_to_save_built(name: str, target: Path) -> list[Step]:
    """Return the steps that save the image of `steps_to_build` as an archive, then remove it."""
    builder = available(BUILDERS)[0]
    if builder == "podman":
        remove = Step((program("podman"), "image", "rm", "--force", name), {})
        return [*steps_to_save("podman", name, target), remove]
    path = program("buildah")
    return [
        Step((path, "push", "--quiet", name, f"docker-archive:{target}"), {}),
        Step((path, "rmi", "--force", name), {}),
    ]


def in_words(error: PrepareError, what: str) -> PrepareError:
    """Return the error of an engine with the text of its last message."""
    if error.failure_class is not FailureClass.ENVIRONMENT or not error.lines:
        return error
    text = error.lines[-1]
    found = _MESSAGE.search(text)
    message = (found[1].replace('\\"', '"') if found else text.removeprefix("Error: ")).strip()
    is_final = any(word in message.lower() for word in _FINAL)
    hint = ""
    if "unauthorized" in message.lower() or "authentication" in message.lower():
        hint = ". Check container.registry: its username, and the secret that its password names"
    return PrepareError(
        f"{what}: {message[:400].rstrip('.')}{hint}",
        failure_class=FailureClass.ENVIRONMENT,
        lines=error.lines,
        is_permanent=is_final,
    )
