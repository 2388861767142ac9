"""Layers: whiteouts in order, links that stay inside, members that lead outside, digests."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from zstandard import ZstdCompressor

from rayjobs.containers import sources, unpacking
from rayjobs.containers.layers import MOST_BYTES, BadImageError, Root
from tests.support.images import docker_archive, file, layer, oci_folder, other

SMALL_LAYER = layer([file("a", b"x" * 5000)])
DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def applied(folder: Path, *layers: bytes) -> Root:
    """Apply layers to a new root."""
    path = folder / "rootfs"
    path.mkdir()
    root = Root(path)
    for number, one in enumerate(layers, 1):
        root.apply(io.BytesIO(one), f"layer {number}")
    root.finish()
    return root


def digest(path: Path, name: str | None = None) -> str:
    with sources.opened(path, name) as found:
        return found.digest


def unpacked(path: Path, target: Path, *, most_bytes: int = MOST_BYTES) -> None:
    with sources.opened(path, most_bytes=most_bytes) as found:
        unpacking.unpack(found, target)


def files_of(folder: Path, packed: bytes) -> int:
    """Unpack a compressed layer without digests; return how many files it has."""
    (folder / "layer").write_bytes(packed)
    image = sources.RootArchive(folder / "layer")
    with tempfile.TemporaryDirectory(dir=folder) as target, image.open(image.layers[0]) as stream:
        root = Root(Path(target))
        root.apply(stream, "layer x")
        return len(names(root))


def names(root: Root) -> set[str]:
    """Everything in a root."""
    return {str(path.relative_to(root.path)) for path in root.path.rglob("*")}


def test_whiteout_removes_files_of_lower_layers_only(
    tmp_path: Path,
) -> None:
    lower = layer([file("a"), file("b"), file("dir/x"), file("dir/y"), file("gone/z")])
    upper = layer(
        [file("a", b"new"), file(".wh.a"), file(".wh.b"), file("dir/.wh.x"), file(".wh.gone")]
    )
    root = applied(tmp_path, lower, upper)
    assert names(root) == {"a", "dir", "dir/y"}
    assert (root.path / "a").read_text() == "new"
    assert root.counts.removed == 3


def test_an_opaque_folder_keeps_only_what_its_own_layer_has_in_any_order(tmp_path: Path) -> None:
    lower = layer([file("d/old"), file("d/deep/old"), file("d/deep/kept/old"), file("e/old")])
    upper = layer([file("d/new"), file("d/deep/kept/new"), file("d/.wh..wh..opq"), file("d/late")])
    root = applied(tmp_path, lower, upper)
    assert names(root) == {
        "d", "d/new", "d/late", "d/deep", "d/deep/kept", "d/deep/kept/new", "e", "e/old",
    }  # fmt: skip


def test_later_layer_restores_a_removed_file(tmp_path: Path) -> None:
    root = applied(
        tmp_path, layer([file("a", b"1")]), layer([file(".wh.a")]), layer([file("a", b"3")])
    )
    assert (root.path / "a").read_text() == "3"


def test_files_folders_and_links_replace_each_other(tmp_path: Path) -> None:
    first = layer([file("was-folder/x"), file("was-file"), other("was-link", LINK, to="/etc")])
    second = layer(
        [file("was-folder", b"f"), file("was-file/x"), other("was-link", DIR), file("was-link/in")]
    )
    root = applied(tmp_path, first, second)
    assert (root.path / "was-folder").read_text() == "f"
    assert (root.path / "was-file/x").exists()
    assert not (root.path / "was-link").is_symlink()


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (file("../evil"), "leads out of the image"),
        (file("a/../../evil"), "leads out of the image"),
        (file("/etc/evil"), "the absolute path"),
        (other("hard", HARD, to="../../etc/passwd"), "leads out of the image"),
        (other("hard", HARD, to="/etc/passwd"), "the absolute path"),
        (other("hard", HARD, to="not-there"), "which the image does not have"),
        (file(".wh..."), "names no file"),
        (file("a/.wh..."), "names no file"),
        (file(".wh."), "names no file"),
    ],
)
def test_a_member_that_leads_outside_refuses_the_whole_image(
    tmp_path: Path, member: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], message: str
) -> None:
    (tmp_path / "evil").write_text("untouched")
    with pytest.raises(BadImageError, match=message):
        applied(tmp_path, layer([file("a/ok"), member]))
    assert (tmp_path / "evil").read_text() == "untouched"


def test_links_are_followed_inside_the_image_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    up = "/".join([".."] * 20)
    root = applied(
        tmp_path,
        layer(
            [
                other("deep/absolute", LINK, to=str(outside)),
                other("relative", LINK, to=f"{up}{outside}"),
                file("deep/absolute/one"),
                file("relative/two"),
                file("deep/absolute/.wh.kept"),
                other("lib", LINK, to="usr/lib"),
                file("lib/libc"),
            ]
        ),
        layer([file("deep/absolute/.wh..wh..opq"), other("hard", HARD, to="lib/libc")]),
    )
    assert sorted(path.name for path in outside.iterdir()) == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    inside = root.path / str(outside).lstrip("/")
    # Both links lead to one folder, which the second layer's opaque whiteout empties.
    assert inside.is_dir() and list(inside.iterdir()) == []
    assert (root.path / "usr/lib/libc").exists()
    assert (root.path / "hard").stat().st_nlink == 2


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match="loop of symbolic links"):
        applied(
            tmp_path,
            layer([other("a", LINK, to="b"), other("b", LINK, to="a"), file("a/x")]),
        )


def test_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    root = applied(tmp_path, layer([other("x", LINK, to=str(outside)), file("x", b"mine")]))
    assert outside.read_text() == "kept"
    assert (root.path / "x").read_text() == "mine"


def test_set_user_id_bits_and_device_files_are_left_out_and_counted(tmp_path: Path) -> None:
    root = applied(
        tmp_path,
        layer(
            [
                file("bin/sudo", b"x", mode=0o4755),
                file("bin/write", b"x", mode=0o2755),
                other("shared", DIR, mode=0o2775),
                other("dev/null", tarfile.CHRTYPE),
                other("dev/disk", tarfile.BLKTYPE),
            ]
        ),
    )
    for name in ("bin/sudo", "bin/write", "shared"):
        assert not (root.path / name).stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert stat.S_IMODE((root.path / "bin/sudo").stat().st_mode) == 0o755
    assert names(root) >= {"dev"} and not (root.path / "dev/null").exists()
    assert root.counts.sentence() == (
        "2 programs without the set-user-ID bit, 2 device files left out"
    )


def test_modes_and_times_are_kept_also_of_folders_without_write_permission(tmp_path: Path) -> None:
    closed = other("closed", DIR, mode=0o555)
    closed.mtime = 1_000_000
    inner, data = file("closed/in", b"x", mode=0o640)
    inner.mtime = 2_000_000
    root = applied(tmp_path, layer([closed, (inner, data)]))
    assert (root.path / "closed").stat().st_mtime == 1_000_000
    assert (root.path / "closed/in").stat().st_mtime == 2_000_000
    assert (root.path / "closed").stat().st_mode & 0o577 == 0o555
    os.chmod(root.path / "closed", 0o755)


def closed_folder(path: Path) -> os.stat_result:
    """Create a folder of the node with its own mode and time."""
    path.mkdir(parents=True)
    path.chmod(0o750)
    os.utime(path, (1_000_000, 1_000_000))
    return path.stat()


def test_link_in_place_of_a_removed_folder_changes_no_folder_of_the_node(
    tmp_path: Path,
) -> None:
    before = closed_folder(tmp_path / "etc/ssh")
    applied(
        tmp_path,
        layer(
            [
                other("a", DIR),
                other("a/ssh", DIR, mode=0o777),
                other("a", LINK, to=str(tmp_path / "etc")),
            ]
        ),
    )
    after = (tmp_path / "etc/ssh").stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)


def test_modes_are_set_without_following_any_link_of_a_path(tmp_path: Path) -> None:
    before = closed_folder(tmp_path / "etc/ssh")
    (tmp_path / "rootfs").mkdir()
    root = Root(tmp_path / "rootfs")
    root.apply(io.BytesIO(layer([other("a", DIR), other("a/ssh", DIR, mode=0o777)])), "layer 1")
    (root.path / "a/ssh").rmdir()
    (root.path / "a").rmdir()
    (root.path / "a").symlink_to(tmp_path / "etc")
    root.finish()
    after = (tmp_path / "etc/ssh").stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)


def test_a_folder_that_is_made_again_does_not_get_the_mode_of_the_removed_one(
    tmp_path: Path,
) -> None:
    root = applied(
        tmp_path,
        layer([other("a", DIR, mode=0o777), other("a/b", DIR, mode=0o777)]),
        layer([file(".wh.a")]),
        layer([file("a/b/c")]),
    )
    for name in ("a", "a/b"):
        assert stat.S_IMODE((root.path / name).stat().st_mode) == 0o755


@pytest.mark.parametrize("compress", [True, False])
def test_a_layer_whose_bytes_were_changed_is_refused(tmp_path: Path, compress: bool) -> None:
    good = layer([file("a", b"x" * 5000)])
    folder = oci_folder(tmp_path / "oci", [good], compress=compress)
    blob = max((folder / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    raw = bytearray(blob.read_bytes())
    if compress:
        blob = max(
            (folder / "blobs/sha256").iterdir(), key=lambda path: path.read_bytes()[:1] == b"\x1f"
        )
        raw = bytearray(blob.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    blob.write_bytes(bytes(raw))
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(BadImageError, match="damaged"):
        unpacked(folder, target)
    assert not (target / unpacking.RECORD).exists()


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    "compress",
    [gzip.compress, bz2.compress, lzma.compress, ZstdCompressor(write_checksum=True).compress],
    ids=["gzip", "bz2", "xz", "zstandard"],
)
def test_a_damaged_layer_of_any_compression_is_named(
    tmp_path: Path, compress: Callable[[bytes], bytes], is_cut: bool
) -> None:
    members = [file(f"file-{number}", os.urandom(3000)) for number in range(200)]
    raw = bytearray(compress(layer(members)))
    assert files_of(tmp_path, bytes(raw)) == 200
    if is_cut:
        del raw[len(raw) // 2 :]
    else:
        raw[len(raw) // 2 : len(raw) // 2 + 400] = bytes(400)
    with pytest.raises(BadImageError, match=r"^layer "):
        files_of(tmp_path, bytes(raw))


def test_holes_of_a_file_and_what_follows_the_archive_count_as_bytes(tmp_path: Path) -> None:
    sparse = tarfile.TarInfo("holes")
    sparse.pax_headers = {
        "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "holes",
        "GNU.sparse.realsize": str(10 * 2**20), "GNU.sparse.map": "0,1",
    }  # fmt: skip
    for number, one in enumerate([layer([(sparse, b"x")]), SMALL_LAYER + bytes(10 * 2**20)]):
        folder = oci_folder(tmp_path / f"oci-{number}", [one])
        target = tmp_path / f"out-{number}"
        target.mkdir()
        with pytest.raises(BadImageError, match="unpacks to more than 1 MiB"):
            unpacked(folder, target, most_bytes=2**20)
        assert sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) < 2**20


def test_compressed_archive_is_read_only_up_to_the_image_size_limit(tmp_path: Path) -> None:
    """The agent itself reads the whole compressed archive to find the members."""
    packed = tmp_path / "root.tar.gz"
    packed.write_bytes(gzip.compress(layer([file("zeros", bytes(3 * 2**20)), file("last")])))
    with (
        pytest.raises(BadImageError, match="unpacks to more than 2 MiB"),
        sources.opened(packed, most_bytes=2 * 2**20),
    ):
        pass


def test_a_member_whose_header_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a")
    member.pax_headers = {"comment": "x" * 2 * 2**20}
    with pytest.raises(BadImageError, match="a header of 2"):
        applied(tmp_path, layer([member]))


def test_a_layer_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "image.tar", [layer([file("a", b"x" * 50_000)])])
    raw = archive.read_bytes()
    archive.write_bytes(raw[: len(raw) - 40_000])
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(BadImageError):
        unpacked(archive, target)


def test_configuration_and_manifest_are_compared_with_their_digests(tmp_path: Path) -> None:
    folder = oci_folder(tmp_path / "oci", [layer([file("a")])])
    for blob in (folder / "blobs/sha256").iterdir():
        if b"diff_ids" in blob.read_bytes():
            blob.write_bytes(
                blob.read_bytes().replace(b"FROM_THE_IMAGE=yes", b"FROM_THE_IMAGE=not")
            )
    with pytest.raises(BadImageError, match="is damaged"):
        digest(folder)


def test_an_image_of_another_machine_and_one_of_several_are_distinguished(tmp_path: Path) -> None:
    arm = oci_folder(tmp_path / "arm", [layer([file("a")])], architecture="arm64")
    with pytest.raises(BadImageError, match="it is for arm64"):
        digest(arm)
    tagged = oci_folder(tmp_path / "tagged", [layer([file("a")])], tag="1")
    assert digest(tagged, "1") == digest(tagged)
    with pytest.raises(BadImageError, match="no image called '2'"):
        digest(tagged, "2")


def test_a_blob_name_that_leads_outside_is_refused(tmp_path: Path) -> None:
    folder = oci_folder(tmp_path / "oci", [layer([file("a")])])
    index = folder / "index.json"
    text = index.read_text()
    begin = text.index("sha256:")
    index.write_text(text.replace(text[begin : begin + 71], "sha256:../../../../etc/passwd"))
    with pytest.raises(BadImageError, match="is not a digest"):
        digest(folder)
