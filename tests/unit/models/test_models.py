"""Models: registered from runs, found by name, version and alias, fetched whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayjobs import Dataset, Model
from rayjobs.core.errors import NotFoundError, StoreError, UsageError
from rayjobs.data.events import InputProvided
from rayjobs.spec.model import Input
from tests.support import registering as models
from tests.unit.models.conftest import SNAPSHOT, Runs


def test_a_run_registers_its_file_with_its_lineage(runs: Runs) -> None:
    job = runs.trained()
    run = runs.workspace.get_run(job.id)
    model = run.register_model(
        "mnist",
        "./outputs/model.pt",
        tags={"stage": "dev"},
        properties={"p": 1},
        model_framework="PyTorch",
        model_framework_version="2.1",
        description="first",
    )
    assert (model.name, model.version, model.id) == ("mnist", 1, "mnist:1")
    assert (model.tags, model.properties) == ({"stage": "dev"}, {"p": "1"})
    assert (model.model_framework, model.model_framework_version) == ("PyTorch", "2.1")
    assert model.run is not None
    assert (model.description, model.run_id, model.run.id) == ("first", job.id, job.id)
    assert model.url.endswith("/models/mnist/1")
    found = model.lineage
    assert (found["run"], found["snapshot"], found["attempt"]) == (job.id, SNAPSHOT, 1)
    assert found["metrics"] == {"accuracy": 0.9}
    assert found["configuration"] == {"arguments": ["--lr", "0.1"]}
    assert found["environment"]["target"] == "local"
    assert found["data"] == model.datasets == []
    assert list(found["files"]) == ["model.pt"]
    json.dumps(found, allow_nan=False)


def test_a_run_registers_all_that_model_register_does(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("a b")
    run = runs.workspace.get_run(runs.trained().id)
    store = runs.workspace.get_default_datastore()
    store.upload(tmp_path / "words", "words", show_progress=False)
    words = Dataset.File.from_files((store, "words")).register(runs.workspace, "words")
    facts: dict[str, Any] = {
        "datasets": [("training", words)],
        "sample_input_dataset": words,
        "sample_output_dataset": words,
        "resource_configuration": "2 CPUs",
    }
    of_run = run.register_model("mnist", "outputs/model.pt", **facts)
    of_class = Model.register(runs.workspace, "outputs/model.pt", "other", run=run, **facts)
    for model in (of_run, of_class, Model(runs.workspace, "mnist")):
        purposes = [one["name"] for one in model.datasets]
        assert purposes == ["training", "sample_input", "sample_output"]
        assert model.sample_input_dataset is not None
        assert model.resource_configuration == model.lineage["resources"] == "2 CPUs"
    with pytest.raises(UsageError, match="register_model does not accept colour, size"):
        run.register_model("third", "outputs/model.pt", size=1, colour="red")
    assert [one.name for one in Model.list(runs.workspace)] == ["mnist", "other"]


def test_model_without_resources_has_none_in_its_lineage(runs: Runs) -> None:
    run = runs.workspace.get_run(runs.trained().id)
    model = run.register_model("model.pt")
    assert model.resource_configuration == ""
    assert "resources" not in model.lineage


def test_versions_count_and_the_same_files_give_the_same_version(runs: Runs) -> None:
    one, two = runs.trained(), runs.trained(data=b"others")
    first = models.register(runs.workspace, name="mnist", run=one.id, path="outputs/model.pt")
    second = models.register(runs.workspace, name="mnist", run=two.id, path="model.pt")
    again = models.register(
        runs.workspace, name="mnist", run=one.id, path="outputs/model.pt", aliases=["best"]
    )
    assert (first.version, second.version, again.version) == (1, 2, 1)
    assert Model(runs.workspace, "mnist").version == 2
    assert Model(runs.workspace, "mnist", version=1).run_id == one.id
    assert Model(runs.workspace, id="mnist:1").aliases == ["best"]
    assert models.find(runs.workspace, "mnist@best").version == 1
    assert models.find(runs.workspace, "mnist:latest").version == 2
    for text in ("mnist:9", "mnist@x", "other"):
        with pytest.raises(NotFoundError):
            models.find(runs.workspace, text)
    with pytest.raises(UsageError, match="not a version"):
        models.find(runs.workspace, "mnist:one")


def test_files_are_stored_once(runs: Runs) -> None:
    job = runs.trained()
    blobs = list(runs.workspace.opened.blobs.list())
    model = models.register(runs.workspace, name="mnist", run=job.id, path="outputs")
    assert list(runs.workspace.opened.blobs.list()) == blobs
    assert [one.name for one in model.record.files] == ["model.pt"]


def test_a_file_or_folder_is_fetched(runs: Runs, tmp_path: Path) -> None:
    job = runs.begin()
    runs.write(job, net___a__bin=b"a", net___deep___b__bin=b"b", model__pt=b"w")
    runs.end(job)
    file = models.register(runs.workspace, name="file", run=job.id, path="outputs/model.pt")
    folder = models.register(runs.workspace, name="folder", run=job.id, path="outputs/net/")
    path = Path(file.download(tmp_path / "here"))
    assert path == tmp_path / "here" / "model.pt"
    assert path.read_bytes() == b"w"
    with pytest.raises(UsageError, match="exist_ok"):
        file.download(tmp_path / "here")
    file.download(tmp_path / "here", exist_ok=True)
    for _ in range(2):
        path = Path(folder.download(tmp_path / "here", exist_ok=True))
    assert path.name == "net"
    assert (path / "deep" / "b.bin").read_bytes() == b"b"
    assert sorted(one.name for one in path.iterdir()) == ["a.bin", "deep"]


def test_user_folder_loses_nothing(runs: Runs, tmp_path: Path) -> None:
    model = models.register(runs.workspace, name="m", run=runs.trained().id, path="outputs")
    own = tmp_path / "outputs"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    (own / "model.pt").write_text("old")
    assert Path(model.download(tmp_path, exist_ok=True)) == own
    assert (own / "thesis.txt").read_text() == "years of work"
    whole = (own / "model.pt").read_bytes()
    assert whole != b"old"
    runs.workspace.opened.blobs.put_bytes(b"torn", model.record.files[0].blob)
    with pytest.raises(StoreError, match="digest"):
        model.download(tmp_path, exist_ok=True)
    assert (own / "model.pt").read_bytes() == whole
    assert sorted(one.name for one in own.iterdir()) == ["model.pt", "thesis.txt"]
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".outputs")] == []


def test_damaged_bytes_are_not_fetched(runs: Runs, tmp_path: Path) -> None:
    model = models.register(runs.workspace, name="m", run=runs.trained().id, path="model.pt")
    runs.workspace.opened.blobs.put_bytes(b"WEIGHTS", model.record.files[0].blob)
    with pytest.raises(StoreError, match="digest"):
        model.download(tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_local_path_is_found_or_fetched(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models.register(runs.workspace, name="m", run=runs.trained().id, path="model.pt")
    with pytest.raises(NotFoundError, match="azureml-models"):
        Model.get_model_path("m")
    path = Model.get_model_path("m", _workspace=runs.workspace)
    assert path == "azureml-models/m/1/model.pt"
    assert Model.get_model_path("m") == path == Model.get_model_path("m:1")
    assert Path(path).read_bytes() == b"weights"


def test_tags_description_and_properties_change_as_allowed(runs: Runs) -> None:
    model = models.register(runs.workspace, name="m", run=runs.trained().id, path="model.pt")
    model.add_tags({"a": 1, "b": 2})
    model.remove_tags(["a"])
    model.add_properties({"p": "1"})
    model.add_alias("live")
    model.update(description="new")
    found = Model(runs.workspace, "m")
    assert (found.tags, found.description) == ({"b": "2"}, "new")
    assert (found.properties, found.aliases) == ({"p": "1"}, ["live"])
    model.update(tags={"c": "3"})
    assert model.tags == {"c": "3"}
    with pytest.raises(UsageError, match="written once"):
        model.add_properties({"p": "2"})
    for alias in ("7", "latest", "a b", ""):
        with pytest.raises(UsageError, match="cannot be an alias"):
            model.add_alias(alias)


def test_versions_are_filtered_by_their_fields(runs: Runs) -> None:
    one, two = runs.trained(), runs.trained(data=b"2")
    models.register(runs.workspace, name="m", run=one.id, path="model.pt", tags={"a": "1"})
    models.register(runs.workspace, name="m", run=two.id, path="model.pt", tags={"a": "2"})
    models.register(runs.workspace, name="n", run=two.id, path="model.pt")

    def ids(**wanted: object) -> list[str]:
        return [model.id for model in Model.list(runs.workspace, **wanted)]  # type: ignore[arg-type]

    assert ids() == ["m:2", "m:1", "n:1"]
    assert ids(latest=True) == ["m:2", "n:1"]
    assert ids(name="m", tags=[["a", "1"]]) == ["m:1"]
    assert ids(tags=["a"]) == ["m:2", "m:1"]
    assert ids(run_id=two.id) == ["m:2", "n:1"]
    assert Model(runs.workspace, "m", tags=[["a", "1"]]).version == 1
    with pytest.raises(NotFoundError, match="all the requested tags"):
        Model(runs.workspace, "m", tags=["x"])
    Model(runs.workspace, "m").delete()
    assert ids() == ["m:1", "n:1"]


def test_a_run_is_named_as_an_object_or_in_the_path(runs: Runs) -> None:
    job = runs.trained()
    run = runs.workspace.get_run(job.id)
    by_run = Model.register(runs.workspace, "outputs/model.pt", "mnist", run=run)
    by_name = Model.register(runs.workspace, f"runs:/{job.id}/outputs/model.pt", "mnist")
    assert by_run.id == by_name.id == "mnist:1"


@pytest.mark.parametrize("name", ["", "a b", "a/b", ":", "-x", "é", "x" * 256])
def test_invalid_names_are_refused(runs: Runs, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        models.register(runs.workspace, name=name, run=runs.trained().id, path="model.pt")


def test_lineage_names_the_data_that_was_read(runs: Runs) -> None:
    job = runs.begin(inputs={"digits": Input(source="dataset:digits:3")})
    runs.write(job, model__pt=b"w")
    facts = {"source": "dataset:digits:3", "mode": "mount", "how": "mounted", "took_s": 0.5}
    runs.workspace.store.add_event(
        job.id,
        InputProvided.KIND,
        "input digits: mounted",
        attempt=1,
        data={"name": "digits", **facts, "version": "digits:3"},
    )
    runs.end(job)
    model = models.register(runs.workspace, name="m", run=job.id, path="model.pt")
    (read,) = model.datasets
    assert read == {
        "name": "digits",
        "source": "dataset:digits:3",
        "mode": "mount",
        "version": "digits:3",
    }


def test_a_run_whose_data_is_not_known_is_refused(runs: Runs) -> None:
    job = runs.begin(inputs={"digits": Input(source="dataset:digits:3")})
    runs.write(job, model__pt=b"w")
    runs.end(job)
    with pytest.raises(UsageError, match="not known which version of its input 'digits'"):
        models.register(runs.workspace, name="m", run=job.id, path="model.pt")
