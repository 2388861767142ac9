"""A submit resolves named data to exact versions, or refuses it with a list of choices."""

from __future__ import annotations

from typing import Any

import pytest

from rayjobs import Workspace
from rayjobs.data.pins import InputRead, input_datasets, inputs_read, pin
from rayjobs.datastore import Dataset, Datastore
from rayjobs.spec.model import JobSpec
from rayjobs.submit.submitting import check, submit


def spec_with(**values: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "test", "script": "train.py", **values})


def test_a_dataset_is_pinned_to_its_newest_version(workspace: Workspace, store: Datastore) -> None:
    Dataset.File.from_files((store, "digits/train")).register(workspace, "digits")
    spec = spec_with(inputs={"a": {"source": "dataset:digits"}})
    pinned, problems, warnings = pin(workspace.opened, spec)
    assert (problems, warnings) == ([], [])
    assert pinned.inputs["a"].source == "dataset:digits:1"
    Dataset.File.from_files((store, "digits/test")).register(
        workspace, "digits", create_new_version=True
    )
    again, _, _ = pin(workspace.opened, pinned)
    assert again.inputs["a"].source == "dataset:digits:1"
    newest, _, _ = pin(workspace.opened, spec)
    assert newest.inputs["a"].source == "dataset:digits:2"


@pytest.mark.parametrize("path", ["digits", "digits/train/a.txt", "digits/**/*.txt", ""])
def test_existing_path_may_be_an_input(workspace: Workspace, store: Datastore, path: str) -> None:
    spec = spec_with(inputs={"a": {"source": f"workspaceblobstore/{path}"}})
    assert pin(workspace.opened, spec) == (spec, [], [])


@pytest.mark.parametrize(
    ("values", "where", "message"),
    [
        (
            {"inputs": {"a": {"source": "workspaceblobstore/digits/trian"}}},
            "inputs.a.source",
            "'digits' has: train",
        ),
        (
            {"inputs": {"a": {"source": "workspaceblobstore/digits/*.png"}}},
            "inputs.a.source",
            "there is nothing",
        ),
        ({"inputs": {"a": {"source": "nowhere/x"}}}, "inputs.a.source", "workspaceblobstore"),
        (
            {"inputs": {"a": {"source": "dataset:digit"}}},
            "inputs.a.source",
            "its datasets are: digits",
        ),
        ({"inputs": {"a": {"source": "dataset:digits:9"}}}, "inputs.a.source", "it has: 1"),
        ({"inputs": {"a": {"source": "dataset:scores"}}}, "inputs.a.source", "direct"),
        (
            {"inputs": {"a": {"source": "workspaceblobstore/digits", "mode": "direct"}}},
            "inputs.a.source",
            "dataset:NAME",
        ),
        (
            {"inputs": {"a": {"source": "saved:sha256:" + "0" * 64}}},
            "inputs.a.source",
            "no manifest",
        ),
        ({"outputs": {"o": {"destination": "nowhere/x"}}}, "outputs.o.destination", "nowhere"),
        (
            {"outputs": {"o": {"destination": "workspaceblobstore/{who}"}}},
            "outputs.o.destination",
            "{run-id}",
        ),
        ({"arguments": ["--x=$AZUREML_DATAREFERENCE_a"]}, "arguments[0]", "it has none"),
    ],
)
def test_unreadable_input_is_refused_with_a_list_of_choices(
    workspace: Workspace, store: Datastore, values: dict[str, Any], where: str, message: str
) -> None:
    from rayjobs.core.errors import SpecError

    Dataset.File.from_files((store, "digits")).register(workspace, "digits")
    Dataset.Tabular.from_delimited_files((store, "table.csv")).register(workspace, "scores")
    with pytest.raises(SpecError) as refused:
        check(workspace.opened, spec_with(**values))
    (problem,) = refused.value.problems
    assert problem.path == where
    assert message in str(problem)


def test_path_written_by_a_parent_job_may_be_missing(
    workspace: Workspace, store: Datastore
) -> None:
    first = submit(workspace.opened, spec_with(), wake=False).job
    spec = spec_with(
        inputs={"a": {"source": "workspaceblobstore/made"}}, depends_on=[{"job": first.id}]
    )
    checked = check(workspace.opened, spec)
    assert "not there yet" in " ".join(checked.warnings)


def test_storage_unreachable_from_the_client_is_a_warning(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    Datastore.register_s3(
        workspace,
        "photos",
        "bucket",
        access_key_env="NO_SUCH_KEY",
        secret_key_env="NO_SUCH_SECRET",
        skip_validation=True,
    )
    spec = spec_with(inputs={"a": {"source": "photos/pets"}})
    pinned, problems, warnings = pin(workspace.opened, spec)
    assert (pinned, problems) == (spec, [])
    assert "NO_SUCH_KEY" in warnings[0]


def test_run_shows_the_version_it_reads(workspace: Workspace, store: Datastore) -> None:
    dataset = Dataset.File.from_files((store, "digits")).register(workspace, "digits")
    spec = spec_with(inputs={"a": {"source": "dataset:digits", "mode": "download"}})
    job = submit(workspace.opened, spec, wake=False).job
    (before,) = inputs_read(workspace.store, job)
    assert before == InputRead("a", "dataset:digits:1", "download")
    assert before.to_json() == {"name": "a", "source": "dataset:digits:1", "mode": "download"}
    seen = {
        "name": "a",
        "source": "dataset:digits:1",
        "mode": "download",
        "how": "downloaded",
        "version": "digits:1",
        "dataset": "digits:1",
        "dataset_id": dataset.id,
        "files": 3,
        "bytes": 6,
        "took_s": 0.25,
    }
    workspace.store.add_event(job.id, "input", "input a: downloaded", attempt=1, data=seen)
    (after,) = inputs_read(workspace.store, job)
    assert after.to_json() == {**seen, "attempt": 1}
    assert (after.version, after.attempt, after.changed) == ("digits:1", 1, "")
    (shown,) = input_datasets(workspace.store, job)
    assert shown["dataset"]["id"] == dataset.id
    assert (shown["dataset"]["name"], shown["dataset"]["version"]) == ("digits", "digits:1")
    assert shown["consumptionDetails"] == {
        "type": "RunInput",
        "inputName": "a",
        "mechanism": "Download",
    }
    assert workspace.get_run(job.id).get_details()["inputDatasets"] == [shown]


def test_run_shows_that_an_input_changed(workspace: Workspace, store: Datastore) -> None:
    spec = spec_with(inputs={"a": {"source": "workspaceblobstore/digits", "mode": "mount"}})
    job = submit(workspace.opened, spec, wake=False).job
    for attempt in (1, 2):
        seen = {"name": "a", "how": "linked", "version": "", "files": 3, "bytes": 6}
        workspace.store.add_event(job.id, "input", "input a", attempt=attempt, data=seen)
        if attempt == 1:
            event_data = {"name": "a", "count": 1}
            text = "input 'a': 1 file changed"
            workspace.store.add_event(job.id, "input_changed", text, attempt=1, data=event_data)
            (found,) = inputs_read(workspace.store, job)
            assert (found.changed, found.attempt) == (text, 1)
            assert found.provided is not None and found.provided.how == "linked"
            assert found.to_json()["changed"] == text
    (found,) = inputs_read(workspace.store, job)
    assert found.changed == "" and "changed" not in found.to_json()
