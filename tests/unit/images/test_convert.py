"""Image directories made from folders and archives."""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.images.component.imagemodels.converting import convert
from rayjobs.images.component.imagemodels.directory import open_any, open_labeled
from rayjobs.images.component.imagemodels.errors import InvalidDatasetError

pytestmark = pytest.mark.long


@pytest.fixture
def photos(data: Path, tmp_path: Path) -> Path:
    """A user's folder of images: inside another folder, with a broken image and hidden files."""
    root = tmp_path / "photos"
    shutil.copytree(data / "train", root / "all")
    (root / "all" / "red" / "broken.jpg").write_bytes(b"\xff\xd8 cut off")
    (root / "all" / "red" / "empty.png").write_bytes(b"")
    (root / "all" / "red" / ".hidden.png").write_bytes(b"x")
    (root / "all" / "readme.txt").write_text("x")
    return root


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_every_source_gives_the_same(kind: str, photos: Path, tmp_path: Path) -> None:
    source = photos
    if kind == "zip":
        source = Path(shutil.make_archive(str(tmp_path / "a"), "zip", photos))
    elif kind == "tar":
        source = Path(shutil.make_archive(str(tmp_path / "a"), "gztar", photos))
    report = tmp_path / "r" / "convert.json"
    done = convert(str(source), str(tmp_path / "out"), report=str(report))
    found = open_labeled(str(tmp_path / "out"))
    assert found.classes == ("blue", "green", "red")
    assert len(found) == done.training == 36
    assert (photos / "all" / found.files[0]).read_bytes() == found.read(0)
    assert done.ignored == 1
    written = json.loads(report.read_text())
    assert sorted(Path(name).name for name in written["unreadable"]) == ["broken.jpg", "empty.png"]


def test_damaged_members_of_a_zip_are_left_out(data: Path, tmp_path: Path) -> None:
    image = (data / "val" / "red" / "0.png").read_bytes()
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for name in ("0", "1", "2"):
            archive.writestr(f"red/{name}.png", image)
        start = archive.getinfo("red/1.png").header_offset
    content = bytearray(source.read_bytes())
    content[start + 200] ^= 0xFF
    source.write_bytes(content)
    done = convert(str(source), str(tmp_path / "out"))
    assert done.training == 2
    assert list(done.unreadable) == ["red/1.png"]
    assert "cannot be read from the archive (Bad CRC-32" in done.unreadable["red/1.png"]


def test_the_rest_of_a_tar_that_is_cut_off_is_left_out(data: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(data / "train", "all")
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    done = convert(str(cut), str(tmp_path / "out"))
    assert 0 < done.training < 36
    assert "the rest of b.tar.gz" in done.unreadable
    assert all("cannot be read from the archive" in why for why in done.unreadable.values())


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("header", "bad checksum"),
        ("zeros", "but more data follows"),
        ("cut off", "empty header"),
        ("cut off in a header", "truncated header"),
    ],
    ids=["header", "zeros", "cut off", "cut off in a header"],
)
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_the_rest_of_a_tar_after_a_damaged_header_is_reported(
    damage: str, why: str, suffix: str, data: Path, tmp_path: Path
) -> None:
    image = data / "val" / "red" / "0.png"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("0", "1", "2"):
            archive.add(image, f"red/{name}.png")
    with tarfile.open(tmp_path / "a.tar") as archive:
        start = archive.getmember("red/1.png").offset
    content = (tmp_path / "a.tar").read_bytes()
    damaged = {
        "header": content[:start] + b"?" + content[start + 1 :],
        "zeros": content[:start] + bytes(512) + content[start + 512 :],
        "cut off": content[:start],
        "cut off in a header": content[: start + 100],
    }[damage]
    source = tmp_path / f"b.{suffix}"
    source.write_bytes(gzip.compress(damaged) if suffix == "tar.gz" else damaged)
    done = convert(str(source), str(tmp_path / "out"))
    assert done.training == 1
    (found,) = done.unreadable.items()
    assert found[0] == f"the rest of b.{suffix}"
    assert found[1].startswith("cannot be read from the archive (") and why in found[1]
    assert f"at byte {start}" in found[1]


def test_a_file_that_cannot_be_opened_is_left_out(photos: Path, tmp_path: Path) -> None:
    (photos / "all" / "red" / "gone.png").symlink_to("nowhere")
    done = convert(str(photos), str(tmp_path / "out"))
    assert done.training == 36
    assert done.unreadable["all/red/gone.png"] == "cannot be read (No such file or directory)"


def test_a_split_has_every_class_in_both_parts_and_repeats(photos: Path, tmp_path: Path) -> None:
    def split(name: str) -> tuple[str, ...]:
        root = tmp_path / name
        convert(str(photos), str(root / "t"), validation=str(root / "v"), share=0.25)
        parts = open_labeled(str(root / "t")), open_labeled(str(root / "v"))
        assert parts[0].classes == parts[1].classes
        assert (len(parts[0]), len(parts[1])) == (27, 9)
        assert not set(parts[0].files) & set(parts[1].files)
        return parts[1].files

    assert split("a") == split("b")


def test_images_without_folders_have_no_label(photos: Path, tmp_path: Path) -> None:
    convert(str(photos / "all" / "blue"), str(tmp_path / "out"))
    assert open_any(str(tmp_path / "out")).classes == ()


def test_members_of_an_archive_stay_in_the_folder(data: Path, tmp_path: Path) -> None:
    image = (data / "val" / "red" / "0.png").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../red/0.png", image)
        archive.writestr("/etc/red/0.png", image)
    convert(str(tmp_path / "a.zip"), str(tmp_path / "in" / "out"))
    assert sorted(one.name for one in (tmp_path / "in" / "out" / "red").iterdir()) == [
        "0-2.png",
        "0.png",
    ]
    assert not (tmp_path / "red").exists()


def test_invalid_source_of_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no archive")
    with pytest.raises(InvalidDatasetError, match="neither a folder nor a zip or tar"):
        convert(str(tmp_path / "x"), str(tmp_path / "out"))
    with pytest.raises(InvalidDatasetError, match="there is no"):
        convert(str(tmp_path / "y"), str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidDatasetError, match="no image"):
        convert(str(tmp_path / "empty"), str(tmp_path / "out"))
    with tarfile.open(tmp_path / "e.tar", "w"):
        pass
    with pytest.raises(InvalidDatasetError, match="no image"):
        convert(str(tmp_path / "e.tar"), str(tmp_path / "out"))


def test_command_splits_and_lists_skipped_files(photos: Path, tmp_path: Path) -> None:
    arguments = ["images", "convert", str(photos), str(tmp_path / "d"), "--validation-share"]
    done = CliRunner().invoke(main, [*arguments, "0.25", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["training"], facts["validation"], facts["classes"][0]) == (27, 9, "blue")
    assert "left out: all/red/broken.jpg cannot be decoded (" in done.stderr
    assert "left out: all/red/empty.png is empty\n" in done.stderr
    assert "0x" not in done.stderr  # the message of PIL contains the address of a buffer
    assert open_labeled(str(tmp_path / "d" / "validation")).classes == ("blue", "green", "red")
