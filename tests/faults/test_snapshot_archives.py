"""Fault 38: crafted archives are refused whole, and nothing outside the target changes.

Each crafted archive has the right hash, so that only the checks of its content can refuse it.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from rayjobs.core.errors import SnapshotError
from rayjobs.snapshots import Limits
from rayjobs.snapshots.unpack import unpack

Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return member(name, type=kind, linkname=target)


def folder(name: str) -> Member:
    return member(name, type=tarfile.DIRTYPE)


def plain_tar(members: list[Member], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def stored(path: Path, content: bytes) -> str:
    path.write_bytes(zstandard.ZstdCompressor().compress(content))
    return "sha256:" + hashlib.sha256(content).hexdigest()


def everything(root: Path) -> dict[str, object]:
    return {
        str(path): (path.lstat().st_mode, os.readlink(path) if path.is_symlink() else None,
                    path.read_bytes() if path.is_file() and not path.is_symlink() else None)
        for path in sorted(root.rglob("*"))
    }  # fmt: skip


REFUSED: dict[str, list[Member]] = {
    "parent": [member("../evil", b"x")],
    "parent inside": [folder("a"), member("a/../../evil", b"x")],
    "parent as a folder": [folder(".."), member("../evil", b"x")],
    "absolute": [member("/tmp/evil", b"x")],
    "dot": [member("./evil", b"x")],
    "empty name": [member("", b"x")],
    "empty part": [folder("a"), member("a//b", b"x")],
    "name twice": [member("a", b"x"), member("a", b"y")],
    "file as a folder": [member("a", b"x"), member("a/b", b"x")],
    "folder missing": [member("a/b", b"x")],
    "folder over file": [member("a", b"x"), folder("a")],
    "link out": [link("a", "../evil")],
    "link absolute": [link("a", "/etc/passwd")],
    "link empty": [link("a", "")],
    "links out in a chain": [folder("d"), link("d/up", ".."), link("d/out", "up/../evil")],
    "links round": [link("a", "b"), link("b", "a")],
    "write through a link": [link("a", "/tmp"), member("a/evil", b"x")],
    "write through an inner link": [folder("d"), link("a", "d"), member("a/evil", b"x")],
    "file over link": [link("a", "../evil"), member("a", b"x")],
    "hard link": [member("a", b"x"), link("b", "a", tarfile.LNKTYPE)],
    "hard link out": [link("b", "../outside/kept", tarfile.LNKTYPE)],
    "character device": [member("a", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [member("a", type=tarfile.BLKTYPE, devmajor=8)],
    "fifo": [member("a", type=tarfile.FIFOTYPE)],
    "contiguous file": [member("a", b"x", type=tarfile.CONTTYPE)],
    "sparse file": [member("a", b"x", type=tarfile.GNUTYPE_SPARSE)],
    "unknown kind": [member("a", b"x", type=b"Z")],
    "long name out": [member("../" + "x" * 200, b"x")],
    "long link out": [link("a", "../" + "x" * 200)],
    "name far too long": [member("x" * 100_000, b"x")],
    "too many": [member(f"f{number}", b"") for number in range(60)],
    "too large": [member("a", bytes(70_000))],
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    (tmp_path / "node").mkdir()
    return tmp_path


LIMITS = Limits(size=65_536, files=50)


def assert_refused(place: Path, digest: str, limits: Limits = LIMITS) -> str:
    before = everything(place)
    with pytest.raises(SnapshotError) as caught:
        unpack(place / "archive", digest, place / "node" / "tree", limits=limits)
    assert everything(place) == before
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_crafted_archive_is_refused_whole(place: Path, name: str) -> None:
    harmless = [member("harmless.py", b"print()")]
    assert_refused(place, stored(place / "archive", plain_tar(harmless + REFUSED[name])))


def test_unmodified_archive_is_unpacked(place: Path) -> None:
    members = [folder("d"), member("d/run", b"x", mode=0o4777), link("l", "d/run")]
    digest = stored(place / "archive", plain_tar(members))
    unpack(place / "archive", digest, place / "node" / "tree", limits=LIMITS)
    assert (place / "node" / "tree" / "l").read_bytes() == b"x"
    assert (place / "node" / "tree" / "d" / "run").stat().st_mode & 0o7000 == 0


def test_extended_headers_are_refused(place: Path) -> None:
    info, content = member("a", b"x")
    info.pax_headers = {"path": "../evil"}
    content_of = plain_tar([(info, content)], tarfile.PAX_FORMAT)
    assert_refused(place, stored(place / "archive", content_of))


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "no tar": lambda _: b"x" * 2_000,
    "cut in a header": lambda data: data[:700],
    "cut in a content": lambda data: data[:520],
    "no end": lambda data: data[:1024],
    "bad checksum": lambda data: b"y" + data[1:],
    "negative size": lambda data: data[:124] + b"\xff" * 12 + data[136:],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tar_is_refused(place: Path, name: str) -> None:
    whole = plain_tar([member("a.py", b"x" * 100)])
    assert_refused(place, stored(place / "archive", BROKEN[name](whole)))


def test_a_bomb_stops_at_the_cap(place: Path) -> None:
    chunk = bytes(1024**2)
    with zstandard.open(place / "archive", "wb") as file:
        for _ in range(64):
            file.write(chunk)
    assert (place / "archive").stat().st_size < 100_000
    message = assert_refused(place, "sha256:" + "0" * 64)
    assert "unpacks to more than" in message


def test_an_archive_that_would_take_too_much_memory_is_refused(place: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    content = plain_tar([member("a", bytes(2_000))])
    with compressor.stream_writer((place / "archive").open("wb")) as stream:
        stream.write(content)
    assert_refused(place, "sha256:" + hashlib.sha256(content).hexdigest())


def test_any_flipped_byte_is_noticed_before_anything_is_visible(place: Path) -> None:
    content = plain_tar([member("a.py", b"print('hello')" * 20)])
    digest = stored(place / "archive", content)
    whole = (place / "archive").read_bytes()
    for at in range(0, len(whole), 7):
        (place / "archive").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            unpack(place / "archive", digest, place / "node" / f"tree{at}", limits=LIMITS)
        except SnapshotError:
            assert not (place / "node" / f"tree{at}").exists()
        else:  # a bit of the frame that does not affect the content
            assert (place / "node" / f"tree{at}" / "a.py").read_bytes() == b"print('hello')" * 20
    (place / "archive").write_bytes(whole[: len(whole) // 2])
    assert_refused(place, digest)
    stored(place / "archive", plain_tar([member("a.py", b"print('hellO')" * 20)]))
    assert "holds something else" in assert_refused(place, digest)


def test_a_missing_archive_is_named(place: Path) -> None:
    assert "does not exist" in assert_refused(place, "sha256:" + "0" * 64)
