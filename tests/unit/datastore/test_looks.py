"""Files whose metadata changed, and those whose content changed."""

import json
import os
import threading
from pathlib import Path

import pytest

from rayjobs.datastore.digests import CHUNK_BYTES, digest_of
from rayjobs.datastore.looks import Change, Seen, changes, look_below


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in ("a", "deep/b", "deep/er/c", "d"):
        (tmp_path / "f" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / path).write_text(path)
    return tmp_path / "f"


def look(folder: Path, **digests: str) -> Seen:
    seen = Seen(str(folder), look_below(folder), digests)
    return Seen.from_json(json.loads(json.dumps(seen.to_json())))


def test_unchanged_files_are_not_reported(folder: Path) -> None:
    seen = look(folder)
    (folder / "new").write_text("new")
    assert sorted(seen.files) == ["a", "d", "deep/b", "deep/er/c"]
    assert list(changes(seen)) == []


def test_each_kind_of_change_is_detected(folder: Path) -> None:
    seen = look(folder)
    (folder / "a").write_text("longer")
    before = (folder / "d").stat()
    (folder / "d").write_text("D")
    os.utime(folder / "d", ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time
    (folder / "other").write_text("d")
    os.utime(folder / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "other").replace(folder / "d")
    (folder / "deep" / "b").unlink()
    os.utime(folder / "deep" / "er" / "c", ns=(1, 1))
    found = {Path(change.path).name: change for change in changes(seen)}
    assert sorted(found) == ["a", "b", "c", "d"]
    assert "6 bytes" in found["a"].sentence and "1 byte," in found["a"].sentence
    assert "is gone" in found["b"].sentence


def test_a_touched_file_with_the_known_content_is_the_same(folder: Path) -> None:
    seen = look(folder, a=digest_of(b"a"), d=digest_of(b"d"))
    os.utime(folder / "a", ns=(1, 1))
    (folder / "d").write_text("D")
    (change,) = changes(seen)
    assert (change.digest, change.digest_now) == (digest_of(b"d"), digest_of(b"D"))
    assert len(list(changes(seen, most_read_bytes=0))) == 2  # an unread file counts as changed


def test_uninspectable_file_is_named_and_the_others_are_compared(
    folder: Path,
) -> None:
    seen = look(folder)
    (folder / "a").unlink()
    (folder / "a").symlink_to("a")
    (folder / "d").write_text("longer")
    found = {Path(change.path).name: change for change in changes(seen)}
    assert sorted(found) == ["a", "d"]
    assert found["a"].trouble == "Too many levels of symbolic links"
    assert "is gone" not in found["a"].sentence and found["a"].trouble in found["a"].sentence
    assert found["d"].trouble == ""


def test_fifo_in_place_of_a_file_does_not_block(folder: Path) -> None:
    seen = look(folder, a=digest_of(b"a"))
    (folder / "a").unlink()
    os.mkfifo(folder / "a")
    found: list[Change] = []
    comparing = threading.Thread(target=lambda: found.extend(changes(seen)), daemon=True)
    comparing.start()
    comparing.join(20.0)
    assert [change.digest_now for change in found] == [""]


def test_each_file_and_part_reports_progress_and_can_stop_the_comparison(folder: Path) -> None:
    content = b"x" * (CHUNK_BYTES + 1)
    (folder / "a").write_bytes(content)
    seen = look(folder, a=digest_of(content))
    os.utime(folder / "a", ns=(1, 1))
    calls: list[tuple[str, int]] = []
    assert list(changes(seen, looking=lambda path, size: calls.append((path, size)))) == []
    assert [size for path, size in calls if path == str(folder / "a")] == [0, CHUNK_BYTES, 1, 0]
    assert {path for path, _ in calls} == {str(folder / path) for path in seen.files}

    def ends(_path: str, size_bytes: int) -> None:
        if size_bytes:
            raise KeyError

    with pytest.raises(KeyError):
        list(changes(seen, looking=ends))


def test_removed_folder_counts_as_all_files_removed(folder: Path) -> None:
    seen = look(folder)
    folder.rename(folder.with_name("moved"))
    assert len(list(changes(seen))) == 4


def test_links_are_followed_and_link_loops_end(folder: Path, tmp_path: Path) -> None:
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "nowhere").symlink_to(tmp_path / "nothing")
    links: set[str] = set()
    assert sorted(look_below(folder, links)) == ["a", "d", "deep/b", "deep/er/c"]
    assert links == {str(folder / "deep" / "up"), str(folder / "nowhere")}
