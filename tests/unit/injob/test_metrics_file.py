"""The metrics file of a rank is read in batches, even if its last line is incomplete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.injob.metrics_file import (
    MAX_LINE,
    MOST_BYTES,
    Appender,
    LoggedRecord,
    read_all,
    read_batch,
)


def line(value: object, name: str = "m") -> bytes:
    return json.dumps({"k": "metric", "name": name, "value": value, "t": 1.0}).encode() + b"\n"


def test_batches_continue_where_the_last_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b"".join(line(number) for number in range(10)))
    first, offset = read_batch(str(path), 0, 4)
    rest, end = read_batch(str(path), offset, 100)
    assert [record.value for record in first + rest] == list(range(10))
    assert end == path.stat().st_size
    assert read_batch(str(path), end, 100) == ([], end)
    positions = [record.position for record in first + rest]
    assert positions == sorted(set(positions))
    assert read_batch(str(path), positions[7], 1)[0][0].value == 7


def test_a_torn_last_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    whole = line(1)
    path.write_bytes(whole + line(2)[:9])
    records, offset = read_batch(str(path))
    assert [record.value for record in records] == [1]
    assert offset == len(whole)
    with path.open("ab") as file:
        file.write(line(2)[9:])
    assert [record.value for record in read_batch(str(path), offset)[0]] == [2]


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(
        b'{"k": "met\n' + b"\xff\xfe\n\n[]\n7\n{}\n" + b"{" * 5000 + b"\n" + line(1) + b"\0\0\n"
    )
    assert [record.value for record in read_all(str(path))] == [1]


def test_a_line_without_end_is_damage_and_costs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b"x" * (2 * MAX_LINE) + b"\n" + line(1))
    assert [record.value for record in read_all(str(path))] == [1]


def test_nothing_is_read_beyond_the_size_limit(tmp_path: Path) -> None:
    """Otherwise a sparse file that a script has made occupies its node for minutes."""
    path = tmp_path / "rank-0.jsonl"
    with path.open("wb") as file:
        file.seek(MOST_BYTES)
        file.write(line(1))
    assert read_batch(str(path), MOST_BYTES) == ([], MOST_BYTES)
    path.write_bytes(line(1))
    assert len(read_batch(str(path), 0)[0]) == 1


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_batch(str(tmp_path / "none")) == ([], 0)
    assert read_all(str(tmp_path / "no" / "folder")) == []


@given(cut=st.integers(min_value=0, max_value=400), limit=st.integers(min_value=1, max_value=5))
@pytest.mark.long
def test_any_cut_loses_no_whole_record_and_invents_none(
    tmp_path_factory: object, cut: int, limit: int
) -> None:
    path = Path(tmp_path_factory.mktemp("cut")) / "f"  # type: ignore[attr-defined]
    data = b"".join(line(number) for number in range(8))
    path.write_bytes(data[:cut])
    seen, offset = [], 0
    for _ in range(50):
        records, next_offset = read_batch(str(path), offset, limit)
        seen += [record.value for record in records]
        if next_offset == offset:
            break
        offset = next_offset
    path.write_bytes(data)
    while True:
        records, next_offset = read_batch(str(path), offset, limit)
        seen += [record.value for record in records]
        if next_offset == offset:
            break
        offset = next_offset
    assert seen == list(range(8))


def test_folder_is_recreated(tmp_path: Path) -> None:
    appender = Appender(str(tmp_path / "metrics" / "rank-0.jsonl"))
    assert appender.append(line(1))
    assert len(read_all(appender.path)) == 1


def test_a_record_is_read_as_it_was_written() -> None:
    record = LoggedRecord("row", {"x": [1, None]}, "fit", 3, 2.5)
    assert LoggedRecord.from_line(record.line()[:-1], 0) == record
    dropped = LoggedRecord("dropped", 7)
    assert json.loads(dropped.line()) == {"k": "dropped", "value": 7}
    assert LoggedRecord.from_line(dropped.line()[:-1], 9) == dropped._replace(position=9)
    with pytest.raises(ValueError, match="JSON"):
        LoggedRecord("metric", float("nan"), "a").line()


@pytest.mark.parametrize(
    "line", [b'{"k": "metric", "name": "a"}', b'{"k": 1, "value": 2}', b'{"k": "tag"} {}']
)
def test_a_line_without_a_kind_or_value_is_damaged(line: bytes) -> None:
    assert LoggedRecord.from_line(line, 0) is None


def test_an_entry_of_another_type_counts_as_missing() -> None:
    line = b'{"k": "metric", "name": 3, "value": 1, "step": true, "t": "now", "later": 1} \r'
    assert LoggedRecord.from_line(line, 5) == LoggedRecord("metric", 1, position=5)
