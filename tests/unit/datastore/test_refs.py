"""References: names, modes, paths and how they are written."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.refs import (
    DataPath,
    DataPathComputeBinding,
    DataReference,
    clean_path,
    parse_reference,
)


def test_a_whole_datastore_takes_its_name() -> None:
    assert str(DataReference("workspaceblobstore")) == "$AZUREML_DATAREFERENCE_workspaceblobstore"


def test_a_datastore_name_with_a_dash_still_makes_a_variable() -> None:
    assert DataReference("my-store").environment_variable == "AZUREML_DATAREFERENCE_my_store"


def test_a_path_takes_a_name_that_stays_the_same() -> None:
    first, again = DataReference("store").path("mnist"), DataReference("store").path("/mnist/")
    assert first == again
    assert len(first.data_reference_name) == 32
    assert first.data_reference_name != DataReference("store").path("other").data_reference_name


def test_the_mode_does_not_change_the_name() -> None:
    reference = DataReference("store", "images", "a/b")
    assert reference.mode == "mount"
    download = reference.as_download("/data", overwrite=True)
    assert (download.mode, download.path_on_compute, download.overwrite) == (
        "download",
        "/data",
        True,
    )
    assert reference.as_upload("out").mode == "upload"
    assert str(download) == str(reference.as_mount()) == "$AZUREML_DATAREFERENCE_images"


def test_a_path_below_a_path() -> None:
    reference = DataReference("store", path_on_datastore="a").path("b/c", "named")
    assert reference.path_on_datastore == "a/b/c"
    assert reference.data_reference_name == "named"


def test_plain_values() -> None:
    config = DataReference("store", "images", "a", mode="download").to_config()
    assert config.to_json() == {
        "datastore_name": "store",
        "mode": "download",
        "path_on_datastore": "a",
        "path_on_compute": None,
        "overwrite": False,
    }


@pytest.mark.parametrize("name", ["a-b", "a b", "ä", "a.b"])
def test_name_that_is_not_a_valid_variable_is_refused(name: str) -> None:
    with pytest.raises(InvalidReference, match="letters, digits and underscores"):
        DataReference("store", name)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidReference, match="mount, download, upload"):
        DataReference("store", mode="copy")


@pytest.mark.parametrize("path", ["..", "a/../b", "../a", "a/.."])
def test_a_path_out_of_the_datastore_is_refused(path: str) -> None:
    with pytest.raises(InvalidReference, match=r"'\.\.'"):
        DataReference("store", path_on_datastore=path)


@given(st.lists(st.sampled_from(["a", "b", ".", "", "x y"]), max_size=6))
@pytest.mark.long
def test_cleaning_a_path_twice_changes_nothing(parts: list[str]) -> None:
    once = clean_path("/".join(parts))
    assert clean_path(once) == once
    assert not once.startswith("/")


@pytest.mark.long
@given(
    name=st.none() | st.from_regex(r"[A-Za-z0-9_]{1,8}", fullmatch=True),
    path=st.none() | st.sampled_from(["a", "a/b", "x y/z"]),
    mode=st.sampled_from(["mount", "download", "upload"]),
)
def test_a_reference_survives_writing_and_reading(
    name: str | None, path: str | None, mode: str
) -> None:
    reference = DataReference("store", name or "", path, mode=mode)
    assert DataReference.from_json(reference.to_json()) == reference
    assert pickle.loads(pickle.dumps(reference)) == reference


def test_a_data_path_is_bound_to_a_mode() -> None:
    path = DataPath("store", "models/last", name="start")
    assert path.create_data_reference().mode == "mount"
    reference = path.create_data_reference(
        datapath_compute_binding=DataPathComputeBinding("download", "/data")
    )
    assert (reference.mode, reference.path_on_compute) == ("download", "/data")
    assert reference.data_reference_name == "start"
    other = DataPathComputeBinding(mode="mount").create_data_reference("named", path)
    assert other.data_reference_name == "named"
    assert (path.datastore_name, path.path_on_datastore) == ("store", "models/last")


def test_a_data_path_without_datastore_cannot_be_bound() -> None:
    with pytest.raises(InvalidReference, match="no datastore"):
        DataPath(path_on_datastore="a").create_data_reference()
    with pytest.raises(InvalidReference):
        DataPathComputeBinding().create_data_reference("name")


@pytest.mark.parametrize(
    ("text", "name", "store", "path", "mode"),
    [
        ("data=store/mnist:mount", "data", "store", "mnist", "mount"),
        ("data=store/a/b.csv:download", "data", "store", "a/b.csv", "download"),
        ("store/mnist", None, "store", "mnist", "mount"),
        ("store", "store", "store", None, "mount"),
        ("out=store/results:upload", "out", "store", "results", "upload"),
    ],
)
def test_a_written_reference(
    text: str, name: str | None, store: str, path: str | None, mode: str
) -> None:
    reference = parse_reference(text)
    assert reference.datastore_name == store
    assert reference.path_on_datastore == path
    assert reference.mode == mode
    if name:
        assert reference.data_reference_name == name


@pytest.mark.parametrize("text", ["", "=store/a", "data=", "data=store/a:moutn", "data=store:a:b"])
def test_a_badly_written_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidReference):
        parse_reference(text)


def test_fields_accept_only_valid_values() -> None:
    reference = DataReference("images", "pets", "cats")
    reference.mode = "download"
    reference.overwrite = True
    assert (reference.mode, str(reference)) == ("download", "$AZUREML_DATAREFERENCE_pets")
    for field, value in {
        "mode": "copy",
        "path_on_datastore": "../secrets",
        "data_reference_name": "my pets",
        "datastore": "",
    }.items():
        with pytest.raises(InvalidReference):
            setattr(reference, field, value)
    assert reference == DataReference("images", "pets", "cats", mode="download", overwrite=True)


def test_a_reference_is_taken_apart_and_put_together_again() -> None:
    reference = DataReference("images", "pets", "cats", "download", "here", overwrite=True)
    path = DataPath.create_from_data_reference(reference)
    binding = DataPathComputeBinding.create_from_data_reference(reference)
    assert (path.datastore_name, path.path_on_datastore) == ("images", "cats")
    assert DataReference.create("pets", path, binding) == reference
    with pytest.raises(InvalidReference, match="compute binding"):
        DataReference.create("pets", path)
    with pytest.raises(InvalidReference, match="not a DataReference"):
        DataPath.create_from_data_reference("images/cats")  # type: ignore[arg-type]
