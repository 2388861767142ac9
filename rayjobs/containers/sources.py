"""Images as files: an OCI folder, an OCI or Docker archive, or a tar of a root file system.

Sources: OCI image layout specification; `docker save` (manifest.json, one file per layer).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from rayjobs.containers.layers import MOST_BYTES, BadImageError, too_large, unreadable
from rayjobs.core.text import size_text
from rayjobs.injob.lazy_dataclass import dataclass

JSON_LIMIT = 8 * 2**20  # bytes of a manifest or a configuration
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}
_ZSTANDARD_BYTES = 2**11  # decompressed at a time; they can become 64 MiB
_INDEXES = ("index.v1+json", "manifest.list.v2+json")
_REFERENCE = "org.opencontainers.image.ref.name"
_NAMES = (_REFERENCE, "io.containerd.image.name")


@dataclass(frozen=True)
class Layer:
    """One layer of an image.

    Attributes:
        blob: The location of its bytes: a digest in an OCI image, or a member of an archive.
        digest: Digest of its stored bytes; None if unknown.
        diff_id: Digest of its uncompressed bytes; None if unknown.
    """

    blob: str
    digest: str | None
    diff_id: str | None


class Image(ABC):
    """An image that can be unpacked.

    Attributes:
        digest: The digest that identifies it: of its configuration, or else of its bytes.
        config: ``Env``, ``WorkingDir``, … of its configuration.
        layers: Its layers, in the order of application.
        raw_config: The bytes of its configuration; empty where it has none.
        most_bytes: Limit of the uncompressed size of all layers, enforced during reading.
    """

    digest: str
    config: Mapping[str, Any]
    raw_config: bytes = b""
    layers: Sequence[Layer]
    most_bytes: int = MOST_BYTES
    _read_bytes: int = 0

    @abstractmethod
    def _blob(self, layer: Layer) -> IO[bytes]:
        """Return the stored bytes of a layer."""

    @contextmanager
    def open(self, layer: Layer) -> Iterator[IO[bytes]]:
        """Yield the uncompressed bytes of a layer; checks them at the end.

        Raises:
            BadImageError: they do not match the image's digests, or are too many.
        """
        with self._blob(layer) as raw:
            stored = _Hashed(raw, layer.digest)
            plain = _Hashed(_uncompressed(stored), layer.diff_id, self._count)
            try:
                yield plain  # type: ignore[misc]
                plain.finish(f"layer {layer.blob}")
                stored.finish(f"layer {layer.blob}")
            except Exception as error:
                if not _is_damage(error):
                    raise
                raise BadImageError(f"layer {layer.blob} is damaged: {error}") from error

    def _count(self, size: int) -> None:
        self._read_bytes += size
        if self._read_bytes > self.most_bytes:
            raise too_large(self.most_bytes)


class _Hashed:
    """A stream that computes the digest of the bytes read."""

    def __init__(
        self, stream: Any, expected: str | None, count: Callable[[int], None] | None = None
    ) -> None:
        self._stream, self._count = stream, count
        algorithm, _, self._expected = (expected or "").partition(":")
        if expected is not None and algorithm not in ("sha256", "sha512"):
            raise BadImageError(f"the digest {expected[:80]!r} has an unknown algorithm")
        self._hash = hashlib.new(algorithm) if expected is not None else None

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        if self._count is not None:
            self._count(len(data))
        if self._hash is not None:
            self._hash.update(data)
        return data

    def finish(self, what: str) -> None:
        """Read to the end, and compare the digest."""
        while self.read(2**20):
            pass
        if self._hash is not None and self._hash.hexdigest() != self._expected:
            raise BadImageError(
                f"{what} is damaged: its digest is not the {self._expected[:16]}… that the image "
                f"names"
            )


def _uncompressed(stream: _Hashed) -> Any:
    """Return a stream of the plain tar, regardless of its compression."""
    head = stream.read(6)
    whole: Any = _Joined(head, stream)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=whole, mode="rb")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        return _Zstandard(whole, zstandard.ZstdDecompressor().decompressobj)
    if head.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(whole)
    if head.startswith(b"\xfd7zXZ"):
        import lzma

        return lzma.LZMAFile(whole)
    return whole


def _is_damage(error: Exception) -> bool:
    """Return whether an error says that compressed bytes are damaged."""
    if isinstance(error, OSError):
        return error.errno is None  # of gzip and bz2; errors of the disk have a number
    # lzma and zstandard are imported only for layers that they compressed.
    names = ("LZMAError", "ZstdError")
    return isinstance(error, zlib.error | EOFError) or type(error).__name__ in names


class _Zstandard:
    """The plain bytes of zstandard's frames; unlike the library's own reader, it notices a cut."""

    def __init__(self, stream: Any, frame: Callable[[], Any]) -> None:
        self._stream, self._new_frame = stream, frame
        self._frame: Any = None
        self._rest = b""  # stored bytes after the last frame that has ended
        self._plain = BytesIO()

    def read(self, size: int = -1) -> bytes:
        found = []
        left = size
        while left and (part := self._plain.read(left) or self._next(left)):
            found.append(part)
            left -= len(part) if size > 0 else 0
        return b"".join(found)

    def _next(self, size: int) -> bytes:
        """Decompress the next stored bytes; return up to `size` of the plain ones."""
        plain = b""
        while not plain:
            stored, self._rest = self._rest or self._stream.read(_ZSTANDARD_BYTES), b""
            if not stored:
                if self._frame is not None:
                    raise EOFError("it ends in the middle of a compressed frame")
                return b""
            if self._frame is None:
                self._frame = self._new_frame()
            plain = self._frame.decompress(stored)
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        self._plain = BytesIO(plain)
        return self._plain.read(size)


class _Joined:
    """Bytes that have already been read, followed by the rest of their stream."""

    def __init__(self, head: bytes, stream: _Hashed) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size)
        if size < 0:
            size = len(self._head)
            data, self._head = self._head, b""
            return data + self._stream.read(-1)
        data, self._head = self._head[:size], self._head[size:]
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    closed = False


class OciImage(Image):
    """An image in the OCI layout, which finds blobs by their digests."""

    def __init__(self, files: _Files, name: str | None) -> None:
        """Read index, manifest and configuration.

        Args:
            name: A tag or reference that selects one of several images; None: the only image.
        """
        self._files = files
        index = _json(files.read("index.json"), "index.json")
        manifest = self._manifest(_chosen(index.get("manifests") or (), name))
        described = manifest["config"]
        self.raw_config = self._checked(described["digest"])
        config = _json(self.raw_config, "the image's configuration")
        self.digest = str(described["digest"])
        self.config = config.get("config") or {}
        _check_platform(config)
        diff_ids = [*(config.get("rootfs") or {}).get("diff_ids", ())]
        found = manifest["layers"]
        if len(diff_ids) not in (0, len(found)):
            raise BadImageError(
                f"it has {len(found)} layers, but its configuration names {len(diff_ids)}"
            )
        self.layers = [
            Layer(one["digest"], one["digest"], diff_ids[at] if diff_ids else None)
            for at, one in enumerate(found)
        ]

    def _manifest(self, described: Mapping[str, Any]) -> dict[str, Any]:
        for _ in range(4):
            found: dict[str, Any] = _json(
                self._checked(described["digest"]), "the image's manifest"
            )
            kind = str(found.get("mediaType") or described.get("mediaType") or "")
            if "manifests" not in found and not kind.endswith(_INDEXES):
                return found
            described = _of_this_machine(found.get("manifests") or ())
        raise BadImageError("its index leads to no manifest")

    def _checked(self, digest: str) -> bytes:
        data = self._files.read(_blob_path(digest))
        algorithm, _, expected = digest.partition(":")
        if hashlib.new(algorithm, data).hexdigest() != expected:
            raise BadImageError(f"the blob {digest[:23]}… is damaged")
        return data

    def _blob(self, layer: Layer) -> IO[bytes]:
        return self._files.open(_blob_path(layer.blob))


class DockerImage(Image):
    """An image in an archive made by `docker save`."""

    def __init__(self, files: _Files, name: str | None) -> None:
        """Read manifest and configuration; see `OciImage`."""
        self._files = files
        entries = _json(files.read("manifest.json"), "manifest.json")
        entry = _one_of([*entries], name, lambda one: one.get("RepoTags") or ())
        self.raw_config = files.read(entry["Config"])
        config = _json(self.raw_config, "the image's configuration")
        _check_platform(config)
        self.digest = f"sha256:{hashlib.sha256(self.raw_config).hexdigest()}"
        self.config = config.get("config") or {}
        diff_ids = (config.get("rootfs") or {}).get("diff_ids") or ()
        if len(diff_ids) != len(entry["Layers"]):
            raise BadImageError(
                f"it has {len(entry['Layers'])} layers, but its configuration names {len(diff_ids)}"
            )
        self.layers = [
            Layer(path, None, diff_id)
            for path, diff_id in zip(entry["Layers"], diff_ids, strict=True)
        ]

    def _blob(self, layer: Layer) -> IO[bytes]:
        return self._files.open(layer.blob)


class RootArchive(Image):
    """A tar of a root file system, without a configuration."""

    def __init__(self, path: Path) -> None:
        """Compute its digest."""
        self._path = path
        self.digest = file_digest(path)
        self.config = {}
        self.layers = [Layer(path.name, None, None)]

    def _blob(self, layer: Layer) -> IO[bytes]:
        return self._path.open("rb")


class _Files(ABC):
    """The files of an image: in a folder, or members of an archive."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Open one of them. Raises BadImageError if it does not exist."""

    def read(self, name: str) -> bytes:
        """Return the content of one of them, which has a size limit."""
        with self.open(name) as file:
            try:
                data = file.read(JSON_LIMIT + 1)
            except Exception as error:
                if not _is_damage(error):
                    raise
                raise BadImageError(f"its {name} cannot be read: {error}") from error
        if len(data) > JSON_LIMIT:
            raise BadImageError(f"{name} is larger than {size_text(JSON_LIMIT)}")
        return data


class _Folder(_Files):
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes]:
        _check_name(name)
        try:
            return (self._path / name).open("rb")
        except FileNotFoundError:
            raise BadImageError(f"it has no {name}") from None


class _Archive(_Files):
    def __init__(self, path: Path, stack: ExitStack, most_bytes: int) -> None:
        file = stack.enter_context(path.open("rb"))
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            self._archive = stack.enter_context(tarfile.open(fileobj=file))  # noqa: SIM115 - the stack does
            for one in self._archive:
                # Compressed: read it to reach the next member.
                if one.offset_data + one.size > most_bytes:
                    raise too_large(most_bytes)
                self._members[one.name.removeprefix("./")] = one
        except Exception as error:
            if not isinstance(error, tarfile.TarError) and not _is_damage(error):
                raise
            raise unreadable("it", error) from error

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        _check_name(name)
        member = self._members.get(name)
        try:
            file = None if member is None else self._archive.extractfile(member)
        except (tarfile.TarError, KeyError) as error:
            raise BadImageError(f"its {name} cannot be read: {error}") from error
        if file is None:
            raise BadImageError(f"it has no {name}")
        return file


def _complete(read: Callable[[], Image]) -> Image:
    try:
        return read()
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadImageError(f"its manifest is incomplete: {error!r}") from error


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _json(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise BadImageError(f"{what} is not JSON: {error}") from error


def _blob_path(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm not in ("sha256", "sha512") or not value.isalnum():
        raise BadImageError(f"{digest[:80]!r} is not a digest")
    return f"blobs/{algorithm}/{value}"


def _check_name(name: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise BadImageError(f"it names the file {name!r}, which leads out of it")


def _chosen(entries: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    def names(one: Mapping[str, Any]) -> list[str]:
        notes = one.get("annotations") or {}
        return [str(notes[key]) for key in _NAMES if key in notes]

    if name is None and len(entries) > 1:
        fitting = [one for one in entries if _fits(one.get("platform"))]
        entries = fitting if len(fitting) == 1 else entries
    return _one_of(list(entries), name, names)


def _one_of(
    entries: Sequence[Mapping[str, Any]],
    name: str | None,
    names: Callable[[Mapping[str, Any]], Iterable[str]],
) -> Mapping[str, Any]:
    if name is not None:
        entries = [
            one
            for one in entries
            if any(tag == name or tag.rpartition(":")[2] == name for tag in names(one))
        ]
    if len(entries) == 1:
        return entries[0]
    if not entries:
        raise BadImageError("it has no image" + (f" called {name!r}" if name else ""))
    raise BadImageError(f"it has {len(entries)} images; name one of them after a colon")


def _of_this_machine(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for one in entries:
        if _fits(one.get("platform")):
            return one
    offered = sorted({str((one.get("platform") or {}).get("architecture")) for one in entries})
    raise BadImageError(
        f"it is for {', '.join(offered) or 'no machine'}; this node is {architecture()}"
    )


def _fits(wanted: Mapping[str, Any] | None) -> bool:
    found = wanted or {}
    return found.get("os", "linux") == "linux" and found.get("architecture") == architecture()


def _check_platform(config: Mapping[str, Any]) -> None:
    wanted = config.get("architecture")
    if wanted and wanted != architecture():
        raise BadImageError(f"it is for {wanted}; this node is {architecture()}")


def architecture() -> str:
    """Return this machine's architecture, as images name it."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


@contextmanager
def opened(path: Path, name: str | None = None, *, most_bytes: int = MOST_BYTES) -> Iterator[Image]:
    """Yield the image in an OCI folder or any kind of archive.

    Args:
        name: Selects one of several images.
        most_bytes: Limit of the uncompressed size of all layers.

    Raises:
        BadImageError: it is not an image, is too large, or is damaged.
        OSError: it cannot be read.
    """
    with ExitStack() as stack:
        image = _complete(lambda: _image_of(path, name, stack, most_bytes))
        image.most_bytes = most_bytes
        yield image


def _image_of(path: Path, name: str | None, stack: ExitStack, most_bytes: int) -> Image:
    if path.is_dir():
        return OciImage(_Folder(path), name)
    files = _Archive(path, stack, most_bytes)
    if "index.json" in files and "oci-layout" in files:
        return OciImage(files, name)
    if "manifest.json" in files:
        return DockerImage(files, name)
    return RootArchive(path)
