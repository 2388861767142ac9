"""Rows and files chosen by conditions, by time, and by what paths say."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from rayjobs.datastore import Dataset, Datastore, FileDataset, MemoryCatalogue, TabularDataset
from rayjobs.datastore.errors import DatasetNotFound, InvalidReference
from rayjobs.injob.azureml.exceptions import DatasetTimestampMissingError

NOON = datetime(2026, 3, 2, 12)


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def store(catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    (tmp_path / "store").mkdir()
    return Datastore.register_folder(catalogue, "tables", tmp_path / "store")


@pytest.fixture
def people(store: Datastore, tmp_path: Path) -> TabularDataset:
    rows = "id,name,age,town\n1,ann,30,Ulm\n2,bob,,Bonn\n3,cy,41,Ulm\n4,Dan,17,\n"
    (tmp_path / "store" / "people.csv").write_text(rows)
    return Dataset.Tabular.from_delimited_files((store, "people.csv"))


def ids(table: TabularDataset) -> list[int]:
    return [row["id"] for row in table]


def test_rows_are_chosen_by_conditions(people: TabularDataset) -> None:
    assert ids(people.filter(people["age"] > 17)) == [1, 3]
    assert ids(people.filter(people["age"] >= 17)) == [1, 3, 4]
    assert ids(people.filter(people["age"] < 30)) == [4]
    assert ids(people.filter(people["age"] <= 30)) == [1, 4]
    assert ids(people.filter(people["town"] == "Ulm")) == [1, 3]
    assert ids(people.filter(people["town"] != "Ulm")) == [2]
    assert ids(people.filter((people["town"] == "Ulm") & (people["age"] > 35))) == [3]
    assert ids(people.filter((people["id"] == 4) | (people["age"] == 41))) == [3, 4]
    assert ids(people.filter(~(people["id"] == 4))) == [1, 2, 3]
    assert ids(people.filter(people["age"].is_null())) == [2]
    assert ids(people.filter(people["name"].starts_with("a"))) == [1]
    assert ids(people.filter(people["name"].ends_with("b"))) == [2]
    assert ids(people.filter(people["name"].contains("y"))) == [3]
    assert ids(people.filter(people["name"].to_lower() == "dan")) == [4]
    assert ids(people.filter(people["name"].to_upper() == "DAN")) == [4]
    assert ids(people.filter(people["name"].length() == 2)) == [3]
    assert ids(people.filter(people["age"] / 2 > people["id"] + 14)) == [3]
    assert ids(people.filter(50 - people["age"] == 2 * people["id"] + 3)) == [3]
    assert ids(people.filter(10 / people["id"] == 5)) == [2]
    assert ids(people.filter(1 + people["id"] - 1 == people["id"] * 1)) == [1, 2, 3, 4]


def test_a_filter_is_a_step_among_others(people: TabularDataset) -> None:
    assert ids(people.filter(people["town"] == "Ulm").take(1)) == [1]
    assert ids(people.take(2).filter(people["id"] > 1)) == [2]
    assert ids(people.filter(people["id"] > 1).skip(1).take(1)) == [3]
    narrowed = people.filter(people["age"] > 20).keep_columns("id")
    assert narrowed.to_arrow_table().column_names == ["id"]


def test_a_filtered_table_is_registered_and_found_as_it_was(
    people: TabularDataset, catalogue: MemoryCatalogue
) -> None:
    grown = people.filter((people["age"] > 17) & (people["town"] == "Ulm"))
    grown.register(catalogue, "grown")
    found = Dataset.get_by_name(catalogue, "grown")
    assert isinstance(found, TabularDataset)
    assert ids(found) == [1, 3]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda t: 3, "takes a condition on columns"),
        (lambda t: t["age"] + 1, "Compare it"),
        (lambda t: t["years"] > 1, "no column 'years'; it has id, name, age, town"),
        (lambda t: t["name"] > 1, "does not fit the columns' types"),
        (lambda t: t["age"] == [1], "cannot be compared with a column"),
        (lambda t: t["name"].contains(t["town"]), "contains takes a string"),
        (lambda t: t[3] == 1, "a column is named by a string"),
    ],
)
def test_invalid_condition_is_refused(
    people: TabularDataset, condition: Callable[[TabularDataset], Any], message: str
) -> None:
    with pytest.raises(InvalidReference, match=message):
        people.filter(condition(people)).to_arrow_table()


def test_conditions_have_no_truth_value(people: TabularDataset) -> None:
    with pytest.raises(InvalidReference, match="combine conditions with &"):
        assert people["age"] > 3 and people["age"] < 40


@pytest.fixture
def measured(store: Datastore, tmp_path: Path) -> TabularDataset:
    lines = ["id,at"] + [f"{hour},2026-03-02 {hour:02d}:00:00" for hour in range(10, 15)]
    (tmp_path / "store" / "measured.csv").write_text("\n".join(lines) + "\n")
    made = Dataset.Tabular.from_delimited_files((store, "measured.csv"))
    return made.with_timestamp_columns("at")


def test_rows_are_chosen_by_time(measured: TabularDataset) -> None:
    assert measured.timestamp_columns == ("at", None)
    assert ids(measured.time_before(NOON)) == [10, 11, 12]
    assert ids(measured.time_before(NOON, include_boundary=False)) == [10, 11]
    assert ids(measured.time_after(NOON)) == [12, 13, 14]
    assert ids(measured.time_after(NOON, include_boundary=False)) == [13, 14]
    hour = timedelta(hours=1)
    assert ids(measured.time_between(NOON - hour, NOON + hour)) == [11, 12, 13]
    assert ids(measured.time_between(NOON - hour, NOON + hour, include_boundary=False)) == [12]
    berlin = datetime(2026, 3, 2, 13, tzinfo=timezone(hour))  # noon in UTC
    assert ids(measured.time_before(berlin)) == [10, 11, 12]


def test_columns_of_zoned_times_compare_with_plain_ones_in_utc(
    store: Datastore, tmp_path: Path
) -> None:
    import pyarrow.parquet

    at = [datetime(2026, 3, 2, hour, tzinfo=UTC) for hour in (11, 12, 13)]
    kind = pyarrow.timestamp("us", "Europe/Berlin")
    table = pyarrow.table({"id": [11, 12, 13], "at": pyarrow.array(at, kind)})
    pyarrow.parquet.write_table(table, tmp_path / "store" / "zoned.parquet")
    zoned = Dataset.Tabular.from_parquet_files((store, "zoned.parquet"))
    assert ids(zoned.with_timestamp_columns("at").time_before(NOON)) == [11, 12]


def test_the_newest_rows_are_selected_by_their_age(store: Datastore, tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    lines = ["id,at"] + [f"{days},{now - timedelta(days=days, hours=1)}" for days in range(5)]
    (tmp_path / "store" / "recent.csv").write_text("\n".join(lines) + "\n")
    made = Dataset.Tabular.from_delimited_files((store, "recent.csv")).with_timestamp_columns("at")
    assert ids(made.time_recent(timedelta(days=3))) == [0, 1, 2]


def test_table_without_times_is_refused(people: TabularDataset, measured: TabularDataset) -> None:
    with pytest.raises(DatasetTimestampMissingError, match="with_timestamp_columns"):
        people.time_before(NOON)
    with pytest.raises(InvalidReference, match=r"'age' holds no times.*set_column_types"):
        people.with_timestamp_columns("age", validate=True)
    with pytest.raises(InvalidReference, match="'age' holds no times"):
        people.with_timestamp_columns("age").time_after(NOON)
    older = people.with_timestamp_columns(fine_grain_timestamp="at", coarse_grain_timestamp="day")
    assert older.timestamp_columns == ("at", "day")
    with pytest.raises(InvalidReference, match="only by the new names"):
        people.with_timestamp_columns("at", coarse_grain_timestamp="day")
    assert measured.drop_columns("at").timestamp_columns == (None, None)
    assert measured.keep_columns("id").timestamp_columns == (None, None)
    assert measured.keep_columns(["at"]).timestamp_columns == ("at", None)
    with pytest.raises(DatasetTimestampMissingError):
        measured.drop_columns("at").time_before(NOON)


@pytest.fixture
def sales(store: Datastore, tmp_path: Path) -> Datastore:
    for number, folder in enumerate(("de/2026/03/01", "de/2026/03/02", "fr/2026/03/02")):
        where = tmp_path / "store" / "sales" / folder
        where.mkdir(parents=True)
        (where / "data.csv").write_text("id\n" + f"{number}\n" * (number + 1))
    return store


FORMAT = "{country}/{day:yyyy/MM/dd}/data.csv"


def test_paths_give_columns(sales: Datastore) -> None:
    table = Dataset.Tabular.from_delimited_files(
        (sales, "sales"), partition_format=FORMAT, include_path=True
    )
    assert table.partition_keys == ["country", "day"]
    first = next(iter(table))
    assert list(first) == ["Path", "country", "day", "id"]
    assert first["day"] == datetime(2026, 3, 1)
    assert ids(table.filter(table["country"] == "fr")) == [2, 2, 2]
    timed = table.with_timestamp_columns(partition_timestamp="day")
    assert ids(timed.time_after(datetime(2026, 3, 2))) == [1, 1, 2, 2, 2]
    assert table.get_partition_key_values(["country"]) == [{"country": "de"}, {"country": "fr"}]
    assert len(table.get_partition_key_values()) == 3


def test_files_are_selected_by_path_and_size(sales: Datastore, catalogue: MemoryCatalogue) -> None:
    files = Dataset.File.from_files((sales, "sales"), partition_format="/" + FORMAT)
    german = files.filter(files["country"] == "de")
    assert german.to_path() == ["/de/2026/03/01/data.csv", "/de/2026/03/02/data.csv"]
    assert len(files.filter(files.file_metadata("Size") > 6).to_path()) == 2
    path = files.file_metadata("Path")
    assert files.filter(path.starts_with("/fr")).to_path() == ["/fr/2026/03/02/data.csv"]
    german.register(catalogue, "german")
    found = FileDataset.get_by_name(catalogue, "german")
    assert found.partition_keys == ["country", "day"]
    assert found.get_partition_key_values(["country"]) == [{"country": "de"}]
    with pytest.raises(InvalidReference, match="the files have no column 'town'"):
        files.filter(files["town"] == "x")
    with pytest.raises(InvalidReference, match="a dataset knows Size, Path"):
        files.file_metadata("Owner")
    with pytest.raises(InvalidReference, match="'town' is not a partition key"):
        files.get_partition_key_values(["town"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("data.csv", "names no column"),
        ("{a}/{a}/data.csv", "has the column 'a' twice"),
        ("{a:dd}/data.csv", "is not a time format"),
        ("{a}/{day:yyyy/MM}/x/data.csv", "does not fit partition_format"),
        ("{a}/other.csv", "does not fit partition_format"),
    ],
)
def test_a_format_that_does_not_fit_is_refused(sales: Datastore, given: str, message: str) -> None:
    with pytest.raises(InvalidReference, match=message):
        Dataset.File.from_files((sales, "sales"), partition_format=given)


def test_a_partition_without_a_valid_time_or_with_the_name_of_a_column_is_refused(
    store: Datastore, tmp_path: Path
) -> None:
    (tmp_path / "store" / "x" / "2026" / "13").mkdir(parents=True)
    (tmp_path / "store" / "x" / "2026" / "13" / "data.csv").write_text("id\n1\n")
    with pytest.raises(InvalidReference, match="gives no time for 'day'"):
        Dataset.File.from_files((store, "x"), partition_format="{day:yyyy/MM}/data.csv")
    with pytest.raises(InvalidReference, match="has a column 'id', and so does partition_format"):
        Dataset.Tabular.from_delimited_files((store, "x"), partition_format="{id}/data.csv")


def test_dataset_without_partitions_is_refused(people: TabularDataset) -> None:
    assert people.partition_keys == []
    with pytest.raises(InvalidReference, match="has no partitions"):
        people.get_partition_key_values()


def test_a_table_is_written_in_partitions(
    people: TabularDataset, store: Datastore, catalogue: MemoryCatalogue
) -> None:
    known = people.filter(~people["town"].is_null())
    parts = known.partition_by(["town"], (store, "parts"), name="by-town", show_progress=False)
    assert isinstance(parts, TabularDataset)
    assert parts.partition_keys == ["town"]
    assert parts.get_partition_key_values() == [{"town": "Bonn"}, {"town": "Ulm"}]
    assert sorted((row["id"], row["town"]) for row in parts) == [
        (1, "Ulm"),
        (2, "Bonn"),
        (3, "Ulm"),
    ]
    assert Dataset.get_by_name(catalogue, "by-town").version == 1
    files = known.partition_by(
        ["town"], (store, "parts"), show_progress=False, partition_as_file_dataset=True
    )
    assert isinstance(files, FileDataset)
    assert files.to_path() == ["/Bonn/part-0.parquet", "/Ulm/part-0.parquet"]
    with pytest.raises(InvalidReference, match="'town' has the value None"):
        people.partition_by(["town"], (store, "parts"), show_progress=False)
    with pytest.raises(InvalidReference, match="needs columns of the table"):
        people.partition_by(["street"], (store, "parts"), show_progress=False)


def test_times_are_written_as_folders(measured: TabularDataset, store: Datastore) -> None:
    parts = measured.partition_by(["at"], (store, "parts"), show_progress=False)
    assert isinstance(parts, TabularDataset)
    later = parts.with_timestamp_columns(partition_timestamp="at").time_after(NOON)
    assert ids(later) == [12, 13, 14]


def test_tags_change_without_the_workspace(
    people: TabularDataset, catalogue: MemoryCatalogue
) -> None:
    with pytest.raises(DatasetNotFound, match="register it first"):
        people.add_tags({"a": "1"})
    kept = people.register(catalogue, "people", tags={"a": "1"})
    assert kept.add_tags({"b": "2"}).remove_tags(tags=["a"]).tags == {"b": "2"}
    assert TabularDataset.get_all(catalogue)["people"].tags == {"b": "2"}
    found = TabularDataset.get_by_id(catalogue, kept.id)
    assert found.add_tags(tags={"c": "3"}).tags == {"b": "2", "c": "3"}
    found.unregister_all_versions()
    assert TabularDataset.get_all(catalogue) == {}
    assert people.Tabular is Dataset.Tabular
    assert FileDataset.File is Dataset.File


def test_missing_files_are_skipped_on_request(sales: Datastore, tmp_path: Path) -> None:
    files = Dataset.File.from_files((sales, "sales"))
    changed = files.data_changed_time
    newest = max(file.stat().st_mtime for file in (tmp_path / "store").rglob("*.csv"))
    assert changed == datetime.fromtimestamp(newest, UTC)
    os.unlink(tmp_path / "store" / "sales" / "fr" / "2026" / "03" / "02" / "data.csv")
    fetched = files.download(tmp_path / "out", ignore_not_found=True, show_progress=False)
    assert [str(Path(one).relative_to(tmp_path / "out")) for one in fetched] == [
        "de/2026/03/01/data.csv",
        "de/2026/03/02/data.csv",
    ]


def test_csv_with_another_separator_and_frames_in_groups(
    people: TabularDataset, store: Datastore, tmp_path: Path
) -> None:
    import pandas
    import pyarrow.parquet

    files = people.to_csv_files(";")
    again = Dataset.Tabular.from_delimited_files(files.download()[0], separator=";")
    assert ids(again) == [1, 2, 3, 4]
    with pytest.raises(InvalidReference, match="one character"):
        people.to_csv_files(str(tmp_path))
    frame = pandas.DataFrame({"a": range(10)})
    Dataset.Tabular.register_pandas_dataframe(
        frame,
        (store, "frames"),
        "frame",
        show_progress=False,
        row_group_size=4,
        make_target_path_unique=False,
    )
    stored = pyarrow.parquet.ParquetFile(tmp_path / "store" / "frames" / "part-0.parquet")
    assert stored.num_row_groups == 3
