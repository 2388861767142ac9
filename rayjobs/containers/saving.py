"""Writes an image as an OCI folder, from which any node unpacks it without a registry."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayjobs.containers import sources
from rayjobs.injob.lazy_dataclass import dataclass

_KIND = "application/vnd.oci.image"
_CHUNK = 2**20
_LEVEL = 1  # of gzip: layers are mostly binaries, for which higher levels cost minutes


@dataclass(frozen=True)
class Saved:
    """A written image.

    Attributes:
        digest: The digest that identifies it.
        layers: The number of its layers.
        bytes: The total size of its files.
    """

    digest: str
    layers: int
    bytes: int


def save(
    image: sources.Image, folder: Path, *, say: Callable[[str], None] = lambda _text: None
) -> Saved:
    """Write an image into an empty folder, checking all bytes against its digests.

    Raises:
        BadImageError: it is damaged, or too large.
        OSError: a file cannot be written.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers, diff_ids = [], []
    for number, layer in enumerate(image.layers, 1):
        say(f"layer {number} of {len(image.layers)}")
        described, diff_id = _layer(image, layer, blobs)
        layers.append(described)
        diff_ids.append(diff_id)
    config = image.raw_config or _json(
        {
            "architecture": sources.architecture(),
            "os": "linux",
            "config": dict(image.config),
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    )
    described = _blob(blobs, config, f"{_KIND}.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_KIND}.manifest.v1+json",
        "config": described,
        "layers": layers,
    }
    index = {
        "schemaVersion": 2,
        "manifests": [_blob(blobs, _json(manifest), manifest["mediaType"])],
    }
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    size = sum(path.stat().st_size for path in blobs.iterdir())
    return Saved(str(described["digest"]), len(layers), size)


def archive_of(root: Path, target: Path) -> None:
    """Write the tar of a root file system.

    Raises:
        OSError: a file cannot be read or written.
    """
    with tarfile.open(target, "w") as archive:
        archive.add(root, arcname=".")


def _layer(image: sources.Image, layer: sources.Layer, blobs: Path) -> tuple[dict[str, Any], str]:
    plain, part = hashlib.sha256(), blobs / "part"
    with part.open("wb") as file, image.open(layer) as stream:
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed:
            while data := stream.read(_CHUNK):
                plain.update(data)
                packed.write(data)
        file.flush()
        os.fsync(file.fileno())
    digest, size = sources.file_digest(part), part.stat().st_size
    part.rename(blobs / digest.partition(":")[2])
    described = {"mediaType": f"{_KIND}.layer.v1.tar+gzip", "digest": digest, "size": size}
    return described, f"sha256:{plain.hexdigest()}"


def _blob(blobs: Path, data: bytes, kind: object) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()
