"""Sources that a user writes are resolved to exact files."""

from pathlib import Path

import pytest

from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import DataNotFound, InvalidReference
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.refs import DataPath, DataReference
from rayjobs.datastore.sources import Source, glob_pattern, parse_sources, resolve


@pytest.fixture
def record(tmp_path: Path) -> DatastoreRecord:
    root = tmp_path / "store"
    for path in ("cats/1.jpg", "cats/2.jpg", "dogs/1.jpg", "dogs/deep/3.jpg", "readme.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return DatastoreRecord("store", "local", {"root": str(root)})


def paths(record: DatastoreRecord, *written: str) -> list[str]:
    manifest = resolve([Source("store", text) for text in written], lambda name: record)
    return [entry.path for entry in manifest]


@pytest.mark.parametrize(
    ("glob", "matches", "others"),
    [
        ("a/*", ["a/b", "a/.c"], ["a/b/c", "a", "b/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("**/*.jpg", ["x.jpg", "a/b/x.jpg"], ["x.png", "a/x.jpg/y"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["a/bz", "z"]),
        ("file?.csv", ["file1.csv"], ["file10.csv", "file/.csv"]),
        ("[ab].txt", ["a.txt", "b.txt"], ["c.txt"]),
        ("[!ab].txt", ["c.txt"], ["a.txt"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a[b", ["a[b"], ["ab"]),
    ],
)
def test_globs(glob: str, matches: list[str], others: list[str]) -> None:
    pattern = glob_pattern(glob)
    assert [text for text in matches if not pattern.match(text)] == []
    assert [text for text in others if pattern.match(text)] == []


def test_a_folder_keeps_its_structure(record: DatastoreRecord) -> None:
    assert paths(record, "dogs") == ["1.jpg", "deep/3.jpg"]


def test_a_glob_keeps_the_structure_below_its_fixed_part(record: DatastoreRecord) -> None:
    assert paths(record, "dogs/**/*.jpg") == ["1.jpg", "deep/3.jpg"]
    assert paths(record, "**/1.jpg") == ["cats/1.jpg", "dogs/1.jpg"]


def test_one_file_is_that_file(record: DatastoreRecord) -> None:
    manifest = resolve([Source("store", "cats/1.jpg")], lambda name: record)
    assert manifest.single_file
    assert [entry.path for entry in manifest] == ["1.jpg"]


def test_several_sources_keep_distinguishing_path_parts(record: DatastoreRecord) -> None:
    assert paths(record, "cats/1.jpg", "dogs/1.jpg") == ["cats/1.jpg", "dogs/1.jpg"]
    assert paths(record, "cats", "dogs/deep") == ["cats/1.jpg", "cats/2.jpg", "dogs/deep/3.jpg"]


def test_a_file_named_twice_is_listed_once(record: DatastoreRecord) -> None:
    assert paths(record, "cats", "cats/1.jpg") == ["1.jpg", "2.jpg"]


def test_several_datastores_are_distinguished(record: DatastoreRecord, tmp_path: Path) -> None:
    other = DatastoreRecord("other", "local", {"root": str(tmp_path / "store" / "cats")})
    manifest = resolve(
        [Source("store", "cats"), Source("other", "")],
        {"store": record, "other": other}.__getitem__,
    )
    assert [entry.path for entry in manifest] == [
        "other/1.jpg",
        "other/2.jpg",
        "store/cats/1.jpg",
        "store/cats/2.jpg",
    ]


def test_missing_source_is_reported(record: DatastoreRecord) -> None:
    with pytest.raises(DataNotFound, match="cast"):
        paths(record, "cast/*.jpg")


def test_a_name_that_looks_like_a_glob(record: DatastoreRecord, tmp_path: Path) -> None:
    (tmp_path / "store" / "part[1].csv").write_text("x")
    assert paths(record, "part[1].csv") == ["part[1].csv"]


def test_every_valid_source_is_accepted(tmp_path: Path) -> None:
    assert parse_sources(DataPath("store", "a")) == (Source("store", "a"),)
    assert parse_sources(DataReference("store", path_on_datastore="a")) == (Source("store", "a"),)
    assert parse_sources([("store", "/a/"), ("other", "b")]) == (
        Source("store", "a"),
        Source("other", "b"),
    )
    assert parse_sources("s3://bucket/a/b") == (Source("s3://bucket", "a/b"),)
    assert parse_sources("azureml://datastores/store/paths/a/b") == (Source("store", "a/b"),)
    assert parse_sources(tmp_path) == (Source("file:///", str(tmp_path).lstrip("/")),)
    assert parse_sources(f"file://{tmp_path}/a%20b") == (
        Source("file:///", f"{tmp_path}/a b".lstrip("/")),
    )


@pytest.mark.parametrize("wrong", [[], 7, ("store",), "nosuch://host/file.csv", DataPath()])
def test_invalid_source_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidReference):
        parse_sources(wrong)


def entry(path: str, key: str = "") -> FileEntry:
    return FileEntry(path, "store", key or path, 1, "etag")


@pytest.mark.parametrize(
    "files",
    [
        [entry("a"), entry("a", "other/a")],
        [entry("a"), entry("a/b")],
        [entry("a//b")],
        [entry("../a")],
        [entry("")],
    ],
)
def test_a_manifest_that_no_folder_can_show_is_refused(files: list[FileEntry]) -> None:
    with pytest.raises(InvalidReference):
        Manifest.of(files)


def test_a_manifest_survives_writing_and_reading() -> None:
    manifest = Manifest.of([entry("b\udcff"), entry("a\nb")], single_file=False)
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.digest == manifest.digest
    assert [file.path for file in again] == ["a\nb", "b\udcff"]
