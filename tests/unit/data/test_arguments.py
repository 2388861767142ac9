"""Data objects among arguments, parameters and inputs become inputs and outputs of the spec."""

from __future__ import annotations

from typing import Any

import pytest

import rayjobs
from rayjobs import (
    DataPath,
    DataPathComputeBinding,
    DataReference,
    OutputFileDatasetConfig,
    PyTorch,
    ScriptRunConfig,
    Workspace,
)
from rayjobs.api.configs import RunConfiguration
from rayjobs.core.errors import UsageError
from rayjobs.data.pins import resolve
from rayjobs.datastore import Dataset, Datastore
from rayjobs.datastore.inputs import open_input
from rayjobs.spec.model import Input, JobSpec, Output, Registration


def spec_of(workspace: Workspace, arguments: list[Any]) -> JobSpec:
    config = ScriptRunConfig("src", "train.py", arguments)
    return config.to_spec(keep=workspace.catalogue.put_manifest)


def test_references_become_inputs_and_their_variables_become_arguments(
    workspace: Workspace, store: Datastore
) -> None:
    binding = DataPathComputeBinding(mode="download", path_on_compute="here")
    arguments = [
        "--mount",
        store.path("digits", "mounted").as_mount(),
        store.path("digits/test", "fetched").as_download(),
        DataPath(store, "table.csv", "path"),
        (DataPath("workspaceblobstore", "digits", "bound"), binding),
        store,
        3,
    ]
    spec = spec_of(workspace, arguments)
    assert spec.arguments == (
        "--mount",
        "$AZUREML_DATAREFERENCE_mounted",
        "$AZUREML_DATAREFERENCE_fetched",
        "$AZUREML_DATAREFERENCE_path",
        "$AZUREML_DATAREFERENCE_bound",
        "$AZUREML_DATAREFERENCE_workspaceblobstore",
        "3",
    )
    assert spec.inputs == {
        "mounted": Input(source="workspaceblobstore/digits"),
        "fetched": Input(source="workspaceblobstore/digits/test", mode="download"),
        "path": Input(source="workspaceblobstore/table.csv"),
        "bound": Input(source="workspaceblobstore/digits", mode="download", path_on_compute="here"),
        "workspaceblobstore": Input(source="workspaceblobstore/"),
    }


def test_a_reference_without_a_name_gets_one_that_is_valid_in_a_spec(
    workspace: Workspace, store: Datastore
) -> None:
    references = [store.path(f"digits/{number}") for number in range(20)]
    spec = spec_of(workspace, references)
    assert list(spec.inputs) == [one.data_reference_name for one in references]


def test_datasets_become_inputs_of_their_version(workspace: Workspace, store: Datastore) -> None:
    files = Dataset.File.from_files((store, "digits")).register(workspace, "digits")
    table = Dataset.Tabular.from_delimited_files((store, "table.csv"))
    table = table.register(workspace, "scores")
    spec = spec_of(
        workspace,
        [files.as_named_input("a").as_mount(), table.as_named_input("t"), files.as_download()],
    )
    assert spec.inputs["a"] == Input(source="dataset:digits:1")
    assert spec.inputs["t"] == Input(source="dataset:scores:1", mode="direct")
    assert spec.inputs["input_1"] == Input(source="dataset:digits:1", mode="download")


def test_inputs_without_a_name_are_numbered_as_in_azure_ml(
    workspace: Workspace, store: Datastore
) -> None:
    train = Dataset.File.from_files((store, "digits/train"))
    test = Dataset.File.from_files((store, "digits/test"))
    named = test.as_named_input("input_2").as_mount()
    arguments = ["--a", train.as_mount(), named, test.as_download(), train.as_mount()]
    spec = spec_of(workspace, arguments)
    assert list(spec.inputs) == ["input_1", "input_2", "input_3"]
    assert spec.inputs["input_3"].mode == "download"
    # The same data in the same way is one input.
    assert spec.arguments[-1] == spec.arguments[1] == "$AZUREML_DATAREFERENCE_input_1"


def test_outputs_without_a_name_each_get_one(workspace: Workspace) -> None:
    one, other = OutputFileDatasetConfig(), OutputFileDatasetConfig()
    spec = spec_of(workspace, [one, other.as_mount()])
    assert list(spec.outputs) == [one.name, other.name]


def test_a_reference_that_was_changed_is_an_input_as_it_is_at_submit(
    workspace: Workspace, store: Datastore
) -> None:
    reference = store.path("digits", "data")
    reference.mode = "download"
    reference.path_on_datastore = "/digits/train/"
    spec = spec_of(workspace, ["--data", reference])
    source = "workspaceblobstore/digits/train"
    assert spec.inputs == {"data": Input(source=source, mode="download")}


def test_an_unregistered_dataset_is_saved_with_its_current_files(
    workspace: Workspace, store: Datastore
) -> None:
    files = Dataset.File.from_files((store, "digits/**/*.txt")).take(2)
    config = ScriptRunConfig("src", "train.py", [files.as_named_input("a").as_mount()])
    with pytest.raises(UsageError, match="register"):
        config.to_spec()
    spec = config.to_spec(keep=workspace.catalogue.put_manifest)
    one = spec.inputs["a"]
    assert one.source.startswith("saved:sha256:")
    found = resolve(workspace.opened, "a", source=one.source, mode="download")
    assert found.manifest == files.manifest
    assert (found.name, found.mode) == ("a", "download")
    assert open_input(found).manifest == files.manifest


def test_output_configs_become_stored_outputs(workspace: Workspace, store: Datastore) -> None:
    made = OutputFileDatasetConfig("made", (store, "made/{run-id}"))
    spec = spec_of(
        workspace,
        [
            made.as_upload(overwrite=True, source_globs="*.pt").register_on_complete(
                "models", "mine", {"a": "b"}
            ),
            OutputFileDatasetConfig("plain"),
            store.path("up", "sent").as_upload(),
        ],
    )
    assert spec.outputs == {
        "made": Output(
            destination="workspaceblobstore/made/{run-id}",
            overwrite=True,
            source_globs=("*.pt",),
            register_as=Registration(name="models", description="mine", tags={"a": "b"}),
        ),
        "plain": Output(mode="mount"),
        "sent": Output(destination="workspaceblobstore/up"),
    }


def test_estimator_accepts_data_as_key_value_and_input(
    workspace: Workspace, store: Datastore
) -> None:
    estimator = PyTorch(
        "src",
        compute_target="local",
        entry_script="train.py",
        script_params={"--data": store.path("digits", "a"), "--flag": "", store.path("x", "k"): ""},
        inputs=[store.path("digits/test", "b")],
    )
    spec = estimator.to_script_run_config().to_spec()
    assert spec.arguments == (
        "--data",
        "$AZUREML_DATAREFERENCE_a",
        "--flag",
        "$AZUREML_DATAREFERENCE_k",
    )
    assert sorted(spec.inputs) == ["a", "b", "k"]
    other = estimator.to_script_run_config({}, [store.path("digits", "c")]).to_spec()
    assert (other.arguments, list(other.inputs)) == ((), ["c"])


def test_a_run_configuration_may_hold_data_references(store: Datastore) -> None:
    settings = RunConfiguration()
    settings.data_references = {"a": store.path("digits", "a").to_config()}
    spec = ScriptRunConfig("src", "train.py", run_config=settings).to_spec()
    assert spec.inputs == {"a": Input(source="workspaceblobstore/digits")}


def test_data_in_a_command_is_quoted_for_the_shell(store: Datastore) -> None:
    config = ScriptRunConfig("src", command=["ls", store.path("digits", "a"), "-l"])
    assert config.to_spec().command == 'ls "$AZUREML_DATAREFERENCE_a" -l'


def test_two_things_cannot_have_one_name(workspace: Workspace, store: Datastore) -> None:
    same = store.path("digits", "a")
    assert list(spec_of(workspace, [same, same]).inputs) == ["a"]
    with pytest.raises(UsageError, match="'a'"):
        spec_of(workspace, [same, store.path("table.csv", "a")])
    with pytest.raises(UsageError, match="'a'"):
        spec_of(workspace, [same, store.path("up", "a").as_upload()])


def test_the_data_classes_are_names_of_the_package() -> None:
    assert rayjobs.Datastore is Datastore
    assert rayjobs.Dataset is Dataset
    assert rayjobs.DataReference is DataReference
