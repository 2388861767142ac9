"""Tables from CSV, Parquet and JSON lines."""

import datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rayjobs.datastore import (
    Dataset,
    Datastore,
    FileDataset,
    MemoryCatalogue,
    OutputFileDatasetConfig,
    TabularDataset,
)
from rayjobs.datastore.errors import DataChanged, DataNotFound, InvalidReference, NotSupported
from rayjobs.datastore.table_options import TableUnreadable


@pytest.fixture
def catalogue() -> MemoryCatalogue:
    return MemoryCatalogue()


@pytest.fixture
def store(catalogue: MemoryCatalogue, tmp_path: Path) -> Datastore:
    root = tmp_path / "store"
    (root / "csv").mkdir(parents=True)
    (root / "csv" / "1.csv").write_text("id,name,score\n1,ann,0.5\n2,bob,\n")
    (root / "csv" / "2.csv").write_text("id,name,score\n3,cy,1\n4,,2\n")
    (root / "rows.jsonl").write_text('{"id": 1, "name": "ann"}\n{"id": 2, "name": null}\n')
    return Datastore.register_folder(catalogue, "tables", root)


@pytest.fixture
def table(store: Datastore) -> TabularDataset:
    return Dataset.Tabular.from_delimited_files((store, "csv/*.csv"))


def test_csv_files_become_one_frame(table: TabularDataset) -> None:
    frame = table.to_pandas_dataframe()
    assert list(frame.columns) == ["id", "name", "score"]
    assert frame["id"].tolist() == [1, 2, 3, 4]
    assert frame["score"].isna().tolist() == [False, True, False, False]
    assert frame["name"].isna().tolist() == [False, False, False, True]


def test_rows_and_columns(table: TabularDataset) -> None:
    assert table.take(3).to_pandas_dataframe()["id"].tolist() == [1, 2, 3]
    assert table.skip(1).take(2).to_pandas_dataframe()["id"].tolist() == [2, 3]
    assert table.take(3).skip(1).to_pandas_dataframe()["id"].tolist() == [2, 3]
    assert table.keep_columns("id").take(1).to_arrow_table().column_names == ["id"]
    assert table.drop_columns(["id", "name"]).to_arrow_table().column_names == ["score"]
    assert [row["id"] for row in table] == [1, 2, 3, 4]
    with pytest.raises(InvalidReference, match="it has id, name, score"):
        table.keep_columns("ident", validate=True)


def test_samples_are_the_same_each_time(table: TabularDataset) -> None:
    sample = table.take_sample(0.5)
    assert sample.to_arrow_table().equals(sample.to_arrow_table())
    first, rest = table.random_split(0.5, seed=3)
    ids = [row["id"] for row in first] + [row["id"] for row in rest]
    assert sorted(ids) == [1, 2, 3, 4]
    assert [row["id"] for row in table.random_split(0.5, seed=3)[0]] == [row["id"] for row in first]


def test_types_can_be_set_or_not_inferred(store: Datastore) -> None:
    typed = Dataset.Tabular.from_delimited_files(
        (store, "csv/*.csv"), set_column_types={"id": str, "score": "float"}
    )
    assert typed.to_pandas_dataframe()["id"].tolist() == ["1", "2", "3", "4"]
    texts = Dataset.Tabular.from_delimited_files((store, "csv/*.csv"), infer_column_types=False)
    assert [row["score"] for row in texts] == ["0.5", None, "1", "2"]
    with pytest.raises(InvalidReference, match="it has id"):
        Dataset.Tabular.from_delimited_files((store, "csv"), set_column_types={"nope": "int"})
    with pytest.raises(InvalidReference, match="cannot have type"):
        Dataset.Tabular.from_delimited_files((store, "csv"), set_column_types={"id": "number"})


def test_separator_header_path_and_encoding(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "store" / "x.txt").write_bytes("1;ä\n2;ö\n".encode("latin1"))
    plain = Dataset.Tabular.from_delimited_files(
        (store, "x.txt"), separator=";", header=False, encoding="latin1", include_path=True
    )
    assert list(plain) == [
        {"Path": "/x.txt", "Column1": 1, "Column2": "ä"},
        {"Path": "/x.txt", "Column1": 2, "Column2": "ö"},
    ]


def test_dates_are_read(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "store" / "d.csv").write_text("when\n2024-01-02\n")
    dates = Dataset.Tabular.from_delimited_files((store, "d.csv"))
    assert next(iter(dates))["when"] == datetime.date(2024, 1, 2)


def test_json_lines(store: Datastore) -> None:
    rows = Dataset.Tabular.from_json_lines_files((store, "rows.jsonl"))
    assert list(rows) == [{"id": 1, "name": "ann"}, {"id": 2, "name": None}]


def test_parquet_round_trip(table: TabularDataset, tmp_path: Path) -> None:
    files = table.to_parquet_files(tmp_path / "out")
    again = Dataset.Tabular.from_parquet_files(tmp_path / "out")
    assert again.to_arrow_table().equals(table.to_arrow_table())
    assert files.to_path() == ["/part-0.parquet"]
    table.to_csv_files(folder=tmp_path / "csv")
    csv = Dataset.Tabular.from_delimited_files(tmp_path / "csv")
    assert [row["id"] for row in csv] == [1, 2, 3, 4]


def test_file_that_is_not_a_table_is_named(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "store" / "bad.csv").write_text("a,b\n1,2,3\n")
    with pytest.raises(TableUnreadable, match=r"bad\.csv"):
        Dataset.Tabular.from_delimited_files((store, "bad.csv"))
    with pytest.raises(TableUnreadable, match=r"bad\.csv"):
        Dataset.Tabular.from_parquet_files((store, "bad.csv"))
    with pytest.raises(DataNotFound):
        Dataset.Tabular.from_delimited_files((store, "nope.csv"))


def test_incompatible_columns_are_reported(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "store" / "csv" / "3.csv").write_text("id,name,score\nfive,x,1\n")
    mixed = Dataset.Tabular.from_delimited_files((store, "csv/*.csv"))
    with pytest.raises(TableUnreadable, match="set_column_types"):
        mixed.to_pandas_dataframe()


def test_an_empty_file_has_no_rows(store: Datastore, tmp_path: Path) -> None:
    (tmp_path / "store" / "empty.csv").write_text("")
    assert list(Dataset.Tabular.from_delimited_files((store, "empty.csv"))) == []


def test_a_registered_table_reads_the_same_rows(
    table: TabularDataset, catalogue: MemoryCatalogue, tmp_path: Path
) -> None:
    table.skip(1).keep_columns(["id"]).register(catalogue, "scores")
    found = Dataset.get_by_name(catalogue, "scores")
    assert isinstance(found, TabularDataset)
    assert list(found) == [{"id": 2}, {"id": 3}, {"id": 4}]
    (tmp_path / "store" / "csv" / "2.csv").write_text("id,name,score\n9,x,1\n")
    with pytest.raises(DataChanged):
        found.to_pandas_dataframe()


def test_a_frame_can_be_registered(store: Datastore, catalogue: MemoryCatalogue) -> None:
    import pandas

    frame = pandas.DataFrame({"a": [1, 2]})
    kept = Dataset.Tabular.register_pandas_dataframe(
        frame, (store, "frames"), "frame", show_progress=False
    )
    assert kept.version == 1
    assert kept.to_pandas_dataframe()["a"].tolist() == [1, 2]


def test_a_frame_does_not_take_the_place_of_a_stored_one(
    store: Datastore, catalogue: MemoryCatalogue
) -> None:
    import pandas

    def register(values: list[int]) -> TabularDataset:
        return Dataset.Tabular.register_pandas_dataframe(
            pandas.DataFrame({"a": values}),
            (store, "frames"),
            "frame",
            show_progress=False,
            make_target_path_unique=False,
        )

    register([1, 2])
    with pytest.raises(InvalidReference, match=r"^tables/frames/part-0\.parquet exists already"):
        register([3])
    assert catalogue.dataset("frame").version == 1


def test_a_table_is_only_used_directly(table: TabularDataset) -> None:
    assert table.as_named_input("scores").mode == "direct"
    with pytest.raises(InvalidReference, match="mount mode"):
        table.as_named_input("scores").as_mount()


def test_dates_and_times_are_datetime64_in_nanoseconds(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "day": pyarrow.array([datetime.date(2026, 3, 1), datetime.date(9999, 1, 1), None]),
            "ms": pyarrow.array([datetime.date(2026, 3, 1), None, None], pyarrow.date64()),
            "at": pyarrow.array([1_772_323_200, 2**40, None], pyarrow.timestamp("s")),
            "zoned": pyarrow.array([0, None, None], pyarrow.timestamp("us", "UTC")),
            "n": [1, 2, 3],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    made = Dataset.Tabular.from_parquet_files(tmp_path / "t.parquet")
    frame = made.to_pandas_dataframe()
    assert [str(frame[name].dtype) for name in frame] == [
        "datetime64[ns]",
        "datetime64[ns]",
        "datetime64[ns]",
        "datetime64[ns, UTC]",
        "int64",
    ]
    assert frame["day"].isna().tolist() == [False, True, True]
    for name in ("day", "ms", "at"):
        assert (frame[name][0].year, frame[name].dt.day.tolist()[0]) == (2026, 1)
    with pytest.raises(TableUnreadable, match="column 'day' has a date"):
        made.to_pandas_dataframe(out_of_range_datetime="fail")
    (tmp_path / "t.csv").write_text("day,n\n2026-03-01,1\n2026-03-02,2\n")
    frame = Dataset.Tabular.from_delimited_files(tmp_path / "t.csv").to_pandas_dataframe(
        out_of_range_datetime="fail"
    )
    assert str(frame["day"].dtype) == "datetime64[ns]"
    assert frame["day"].dt.day.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (TabularDataset, "get_profile", "describe"),
        (TabularDataset, "mount", "file dataset"),
        (TabularDataset, "to_dask_dataframe", "to_parquet_files"),
        (TabularDataset, "update", "create_new_version"),
        (FileDataset, "as_cache", "as_mount"),
        (FileDataset, "hydrate", "as_mount"),
        (FileDataset, "update", "create_new_version"),
        (Dataset.Tabular, "from_sql_query", "CSV or Parquet"),
        (Datastore, "register_azure_sql_database", "CSV or Parquet"),
        (Datastore, "register_hdfs", "register_fsspec"),
        (OutputFileDatasetConfig, "read_delimited_files", "from_delimited_files"),
        (OutputFileDatasetConfig, "read_parquet_files", "from_parquet_files"),
    ],
)
def test_azure_only_features_are_refused_in_one_sentence(
    owner: type, name: str, instead: str
) -> None:
    with pytest.raises(NotSupported, match=rf"\.{name} is not supported; .*{instead}") as refused:
        getattr(owner, name)("anything", at=1)
    assert isinstance(refused.value, NotImplementedError)
