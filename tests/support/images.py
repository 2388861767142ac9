"""Container images for tests, made of the machine's own files: nothing is downloaded."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_LEFT_OUT = {"test", "tests", "idlelib", "ensurepip", "lib2to3", "tkinter", "site-packages",
             "turtledemo", "pydoc_data"}  # fmt: skip
_PROGRAMS = ("/bin/sh", *(f"/usr/bin/{name}" for name in (
    "cat", "sleep", "env", "id", "dirname", "realpath")))  # fmt: skip
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
DEFAULT_ENV = ("PATH=/usr/local/bin:/usr/bin:/bin", "FROM_THE_IMAGE=yes")


def python_root(folder: Path) -> Path:
    """Make a root file system with this machine's Python and a shell below `folder`."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    for name in ("tmp", "etc", "root", "sys", "usr/local/bin", "usr/bin", "lib64", "proc", "dev"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "lib").symlink_to("usr/lib")
    (folder / "usr/lib").mkdir()
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/os-release").write_text('NAME="made by a test"\n')
    real = Path(os.path.realpath(sys.executable))
    take(real, folder / "usr/local/bin" / version)
    for name in ("python", "python3"):
        (folder / "usr/local/bin" / name).symlink_to(version)
    own = base / "lib" / version
    for path in own.rglob("*"):
        relative = path.relative_to(own)
        if _LEFT_OUT & set(relative.parts) or relative.parts[0].startswith("config-"):
            continue
        if path.is_file():
            take(path, folder / "usr/local/lib" / version / relative)
    binaries = [real, *(own / "lib-dynload").glob("*.so")]
    for program in _PROGRAMS:
        binaries.append(Path(os.path.realpath(program)))
        take(binaries[-1], folder / "usr/bin" / Path(program).name)
    shared = base / "lib" / str(sysconfig.get_config_var("LDLIBRARY"))
    if shared.is_file():
        take(shared, folder / "usr/lib/x86_64-linux-gnu" / str(
            sysconfig.get_config_var("INSTSONAME")))  # fmt: skip
    take_libraries(binaries, folder)
    return folder


def take(source: Path, target: Path) -> None:
    """Copy a file of the machine: a test may change the copy, so it must not be a hard link."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.path.realpath(source), target)  # and its time, for the bytecode


def take_libraries(binaries: Iterable[Path], folder: Path) -> None:
    """Copy the shared libraries of programs into a root, where the loader searches for them."""
    words = [str(path) for path in binaries]
    output = subprocess.run(["ldd", *words], capture_output=True, text=True, check=False).stdout
    for found in set(_LIBRARY.findall(output)):
        path = Path(found)
        name = path.name
        place = "lib64" if name.startswith("ld-linux") else "usr/lib/x86_64-linux-gnu"
        take(path, folder / place / name)


def layer(members: Sequence[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Return the tar of a layer with exactly these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for one in members:
            member, data = one if isinstance(one, tuple) else (one, b"")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def file(name: str, data: bytes = b"", *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member that is a file."""
    member = tarfile.TarInfo(name)
    member.mode = mode
    return member, data


def other(name: str, kind: bytes, *, to: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    """Return a member that is a folder, a link or a device."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, to, mode
    return member


def tar_of(folder: Path) -> bytes:
    """Return the tar of a root file system."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder, arcname=".")
    return stream.getvalue()


def oci_folder(
    target: Path,
    layers: Sequence[bytes],
    *,
    env: Sequence[str] = DEFAULT_ENV,
    tag: str | None = None,
    architecture: str = "amd64",
    compress: bool = True,
) -> Path:
    """Write an OCI folder with these layers."""
    (target / "blobs/sha256").mkdir(parents=True)
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    kind = "application/vnd.oci.image"
    of_layer = f"{kind}.layer.v1.tar{'+gzip' if compress else ''}"
    described = [
        _blob(target, gzip.compress(one, 1, mtime=0) if compress else one, of_layer)
        for one in layers
    ]
    diff_ids = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    config = {
        "architecture": architecture, "os": "linux", "config": {"Env": list(env)},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }  # fmt: skip
    manifest = _blob(
        target,
        _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{kind}.manifest.v1+json",
                "config": _blob(target, _json(config), f"{kind}.config.v1+json"),
                "layers": described,
            }
        ),
        f"{kind}.manifest.v1+json",
    )
    if tag is not None:
        manifest["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (target / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": [manifest]}))
    return target


def docker_archive(target: Path, layers: Sequence[bytes], *, name: str = "made:1") -> Path:
    """Write an archive as `docker save` does."""
    diff_ids = [f"sha256:{hashlib.sha256(one).hexdigest()}" for one in layers]
    config = _json({
        "architecture": "amd64", "os": "linux", "config": {"Env": list(DEFAULT_ENV)},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })  # fmt: skip
    names = [f"{at}/layer.tar" for at in range(len(layers))]
    manifest = _json([{"Config": "config.json", "RepoTags": [name], "Layers": names}])
    members = [file("manifest.json", manifest), file("config.json", config)]
    members += [file(at, one) for at, one in zip(names, layers, strict=True)]
    target.write_bytes(layer(members))
    return target


def _blob(target: Path, data: bytes, kind: str) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (target / "blobs/sha256" / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _json(value: Mapping[str, object] | Sequence[object]) -> bytes:
    return json.dumps(value).encode()
