"""A pipeline is checked as a whole, with a path for each problem, and written at once."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from rayjobs import snapshots
from rayjobs.core.errors import UsageError
from rayjobs.jobs.states import JobState
from rayjobs.pipelines.explaining import explained
from rayjobs.pipelines.pipeline_file import load_pipeline
from rayjobs.pipelines.planning import Packer, PlannedRun, plan
from rayjobs.pipelines.published import publish, run_published
from rayjobs.pipelines.reuse import NOT_COUNTED
from rayjobs.pipelines.spec import PipelineError, PipelineSpec
from rayjobs.pipelines.submitter import resume_pipeline, submit_pipeline
from rayjobs.snapshots.listing import files_of
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.spec.text import write_yaml
from rayjobs.store.requests import JobFilter
from rayjobs.workspace.folder import open_workspace, original_of
from tests.support.wheels import make_project
from tests.unit.pipelines.played import Played, decisions, reused, steps


def planned(played: Played, spec: PipelineSpec) -> PlannedRun:
    """Return what a dry run shows."""
    packer = Packer(played.workspace, stores=False)
    return plan(played.workspace, spec, experiment="dry", packer=packer)


def problems(played: Played, **changes: Any) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        played.submit(played.spec(**changes))
    assert played.store.jobs() == []
    return [str(one) for one in caught.value.problems]


def test_a_consumer_names_the_job_that_makes_its_input(played: Played) -> None:
    run = played.submit()
    by_name = {one.name: played.store.job(one.job_id) for one in run.steps}
    assert by_name["train"].spec.inputs["data"].source == f"output:{by_name['prep'].id}/clean"
    assert [one.job for one in by_name["train"].spec.depends_on] == [by_name["prep"].id]
    assert by_name["train"].spec.arguments == ("--epochs", "3")
    assert by_name["train"].snapshot == by_name["prep"].snapshot is not None
    assert by_name["prep"].spec.tags == {"pipeline": run.id, "step": "prep"}
    played.complete_all(run.id)
    assert played.store.job(run.id).state is JobState.COMPLETED


def test_a_cycle_is_refused_with_its_path(played: Played) -> None:
    (text,) = problems(played, steps=steps(prep={"after": ["test"]}))
    assert "waits for itself: prep → train → test → prep" in text


def test_two_steps_that_write_one_output_are_refused(played: Played) -> None:
    place = {"destination": "workspaceblobstore/same"}
    texts = problems(
        played, steps=steps(prep={"outputs": {"clean": place}}, train={"outputs": {"model": place}})
    )
    assert "steps.train.outputs.model" in texts[0]
    assert "so does steps.prep.outputs.clean" in texts[0]


def test_inputs_that_no_step_produces_are_refused(played: Played) -> None:
    inputs = {"a": "step:prap/clean", "b": "step:prep/clear", "c": "step:prep/clean"}
    texts = problems(played, steps=steps(train={"inputs": inputs}))
    assert len(texts) == 2
    assert "steps.train.inputs.a: no step produces it" in texts[0]
    assert "Did you mean 'prep'?" in texts[0]
    assert "steps.train.inputs.b" in texts[1] and "Did you mean 'clean'?" in texts[1]


def test_all_problems_of_all_steps_are_reported_together(played: Played) -> None:
    texts = problems(
        played,
        steps=steps(prep={"script": "gone.py"}, test={"target": "moon"}, train={"grace_s": "x"}),
    )
    found = " ".join(texts)
    assert "steps.prep.script" in found and "steps.test.target" in found
    assert "steps.train" in found


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"steps": steps(prep={"params": 3}, train={"reuse": {"hash_path": ["x"]}})},
        ["steps.prep.params: 3 is not a mapping", "steps.train.reuse.hash_path: is not a known"],
    ),
    (
        {"steps": steps(prep={"inputs": 5, "outputs": [1], "after": 4, "arguments": 3})},
        [
            "steps.prep.inputs: 5 is not",
            "steps.prep.outputs: [1] is not",
            "steps.prep.after: 4 is not a list of steps",
            "steps.prep.arguments: 3 is not a list",
        ],
    ),
    (
        {
            "steps": steps(
                prep={"script": "gone.py", "resue": False}, train={"inputs": {"a": "step:x/y"}}
            )
        },
        [
            "steps.prep.resue: is not a known key. Did you mean `reuse`?",
            "steps.prep.script: 'gone.py' does not exist",
            "steps.train.inputs.a: no step produces it",
        ],
    ),
    (
        {"steps": {**steps(), "x": 3, "y": {}}, "defalts": {}, "parameters": [1]},
        [
            "defalts: is not a key of a pipeline file. Did you mean `defaults`?",
            "parameters: is not a mapping",
            "steps.x: is not a mapping",
            "steps.y.script: is missing",
        ],
    ),
    (
        {
            "parameters": {
                "a": {"type": "integer", "default": "many"},
                "b": {"dflt": 1},
                "c": [1],
                "d": {"type": "whole"},
                "epochs": {"default": 3},
            },
            "steps": steps(prep={"reuse": {"hash_paths": ["prep.py", "gone.py"]}}),
        },
        [
            "parameters.a.default: 'many' is not of the type 'integer'",
            "parameters.b.dflt: is not a known key",
            "parameters.c: [1] is not a single value",
            "parameters.d.type: 'whole' is not one of",
            "steps.prep.reuse.hash_paths[1]: 'gone.py' does not exist",
        ],
    ),
    (
        {"steps": steps(prep={"outputs": {"o": 3}}, train={"inputs": {"data": "step:/"}})},
        ["steps.prep.outputs.o: 3 is neither text", "steps.train.inputs.data: no step produces it"],
    ),
    (
        {
            "name": 5,
            "continue_on_step_failure": "maybe",
            "steps": steps(
                prep={"container": {"dockerfile": "gone"}},
                train={"environment": {"requirements": "gone.txt"}, "reuse": "maybe"},
                test={"depends_on": ["x"], "sweep": 1},
            ),
        },
        [
            "name: 5 is not text",
            "continue_on_step_failure: 'maybe' is neither",
            "steps.prep.container: there is no Dockerfile",
            "gone.txt, which environment.requirements names",
            "steps.train.reuse: 'maybe' is not true, false or a mapping",
            "steps.test.depends_on: is not for steps. Use `after`.",
            "steps.test.sweep: 1 is not a mapping",
        ],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG)
def test_each_mistake_in_a_file_is_named_with_its_path(
    played: Played, changes: dict[str, Any], expected: list[str]
) -> None:
    texts = problems(played, **changes)
    missing = [one for one in expected if not any(one in text for text in texts)]
    assert not missing, texts
    assert len(texts) == len(expected), texts


def test_values_set_by_a_run_are_not_mistakes_of_the_file(played: Played) -> None:
    prep = {
        "distribution": {"backend": "gloo", "nodes": "${{parameters.nodes}}"},
        "inputs": {"data": "${{parameters.source}}"},
    }
    parameters = {"epochs": 3, "nodes": None, "source": {"type": "data"}}
    spec = played.spec(parameters=parameters, steps=steps(prep=prep))
    with pytest.raises(PipelineError) as caught:
        played.submit(spec)
    assert [one.path for one in caught.value.problems] == ["parameters.nodes", "parameters.source"]


def test_parameters_have_types_and_names(played: Played) -> None:
    spec = played.spec()
    for values, expected in (
        ({"epochs": "many"}, "parameters.epochs"),
        ({"epoch": 3}, "parameters.epoch: is not a parameter"),
    ):
        with pytest.raises(PipelineError, match=expected):
            played.submit(spec, values=values)
    run = played.submit(spec, values={"epochs": "7"})
    train = next(one for one in run.steps if one.name == "train")
    assert train.spec.arguments == ("--epochs", "7")
    assert run.values == {"epochs": 7}


def test_parameters_may_be_counts_and_variables(played: Played) -> None:
    changes = {
        "distribution": {"backend": "gloo", "nodes": "${{parameters.epochs}}"},
        "params": {"how many": "${{parameters.epochs}}"},
        "environment_variables": {"DEEP": "at ${{parameters.epochs}}"},
    }
    spec = played.spec(steps=steps(prep=changes))
    prep = played.submit(spec).steps[0].spec
    assert prep.distribution.nodes == 3
    assert prep.environment_variables == {"DEEP": "at 3", "AML_PARAMETER_how_many": "3"}


@pytest.mark.long
def test_an_unchanged_pipeline_reuses_all_steps(played: Played) -> None:
    first = played.run()
    again = played.submit()
    assert reused(again) == ["prep", "train", "test"]
    assert played.store.job(again.id).state is JobState.COMPLETED
    for one, before in zip(again.steps, first.steps, strict=True):
        assert one.decision.original == before.job_id
        job = played.store.job(one.job_id)
        assert (job.state, job.attempt) == (JobState.COMPLETED, 0)
        assert job.properties["azureml.reusedrunid"] == before.job_id
    # What was reused is reused from its original.
    assert played.submit().steps[0].decision.original == first.steps[0].job_id


@pytest.mark.long
def test_changed_step_and_its_consumers_run_again(played: Played) -> None:
    first = played.run()
    run = played.run(values={"epochs": 4})
    assert reused(run) == ["prep"]
    train = first.steps[1].job_id
    assert decisions(run)["train"] == f"runs: differs from {train} in arguments"
    assert "reads new output of 'train' in this run" in decisions(run)["test"]
    # A job of this run reads the output of the one that is reused.
    source = run.steps[1].spec.inputs["data"].source
    assert source == f"output:{first.steps[0].job_id}/clean"
    assert reused(played.submit(values={"epochs": 3})) == ["prep", "train", "test"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"script": "train.py"}, "entry"),
        ({"environment_variables": {"A": "1"}}, "environment_variables"),
        ({"reuse": {"version": "2"}}, "version"),
        ({"params": {"level": "high"}}, "params"),
        ({"outputs": {"clean": {}, "more": {}}}, "outputs.more"),
        ({"inputs": {"in": "workspaceblobstore/"}}, "inputs.in"),
        ({"environment": {"pip": ["six==1.16.0"]}}, "environment"),
        ({"container": {"image": "a:1"}}, "container"),
    ],
)
@pytest.mark.long
def test_each_part_of_a_step_affects_reuse(
    played: Played, change: dict[str, Any], part: str
) -> None:
    played.run()
    run = played.submit(played.spec(steps=steps(prep=change)))
    assert reused(run) == []
    assert part in run.steps[0].decision.differs


def test_each_job_field_affects_reuse_or_is_exempted() -> None:
    # A new field must be put into one of the two sets.
    counted = {
        "script",
        "command",
        "arguments",
        "environment",
        "container",
        "environment_variables",
        "secrets",
        "distribution",
        "inputs",
        "outputs",
        "parallel_run",
        "resume_from",
    }
    assert not counted & NOT_COUNTED
    assert counted | NOT_COUNTED == set(JobSpec.model_fields)


def test_another_image_is_another_step(played: Played) -> None:
    played.run(played.spec(steps=steps(prep={"container": {"image": "a:1"}})))
    run = played.submit(played.spec(steps=steps(prep={"container": {"image": "b:2"}})))
    assert reused(run) == [] and "container" in run.steps[0].decision.differs


@pytest.mark.long
def test_changed_package_resolution_prevents_reuse(played: Played) -> None:
    """Off switch: return "" from `Decisions._other_packages`."""
    spec = played.spec(steps=steps(prep={"environment": {"pip": ["six"]}}))
    played.lock = "six==1.16.0 --hash=sha256:aa\nnumpy==2.1.0\n"
    first = played.run(spec)
    assert reused(played.submit(spec)) == ["prep", "train", "test"]
    played.lock = "six==1.17.0 --hash=sha256:bb\nnumpy==2.1.0\n"
    played.run(played.spec(name="another", steps=steps(prep={"environment": {"pip": ["numpy"]}})))
    assert "prep" in reused(played.submit(spec))  # those were other packages
    newest = played.run(played.spec(name="third", steps={"alone": spec_of_six()})).steps[0].job_id
    run = played.submit(spec)
    original = first.steps[0].job_id
    assert reused(run) == [] and decisions(run)["prep"] == (
        f"runs: {original} had other packages: six 1.16.0 → 1.17.0, as {newest} has them"
    )
    played.complete_all(run.id)
    (row, *_) = played.store.steps(run.id)
    (found,) = explained(played.workspace, row).differences
    assert (found.part, found.lines) == ("packages", ("six 1.16.0 → 1.17.0",))
    assert reused(played.submit(spec)) == ["prep", "train", "test"]


def spec_of_six() -> dict[str, Any]:
    return {"script": "prep.py", "environment": {"pip": ["six"]}}


@pytest.mark.long
def test_local_package_is_packed_and_affects_reuse(played: Played) -> None:
    project = make_project(played.folder / "project", "own-package")
    spec = played.spec(steps=steps(prep={"environment": {"pip": [str(project)]}}))
    first = played.run(spec)
    stored = played.store.job(first.steps[0].job_id).spec.environment
    assert isinstance(stored, Packages)
    (digest,) = stored.sources.values()
    assert played.workspace.blobs.exists(snapshots.blob_key(digest))
    assert reused(played.submit(spec)) == ["prep", "train", "test"]
    (project / "own_package.py").write_text("VALUE = 'changed'\n")
    before = sorted(played.workspace.blobs.list())
    dry = planned(played, spec)
    assert sorted(played.workspace.blobs.list()) == before
    run = played.submit(spec)
    assert reused(run) == [] and run.steps[0].decision.differs == ("environment",)
    assert dry.steps[0].parts == run.steps[0].parts


@pytest.mark.long
def test_local_checkpoint_is_packed_and_affects_reuse(played: Played) -> None:
    weights = played.folder / "weights.pt"
    weights.write_text("1")
    spec = played.spec(steps=steps(prep={"resume_from": str(weights)}))
    first = played.run(spec)
    assert str(played.store.job(first.steps[0].job_id).spec.resume_from).startswith("packed:")
    weights.write_text("2")
    before = sorted(played.workspace.blobs.list())
    dry = planned(played, spec)
    assert sorted(played.workspace.blobs.list()) == before
    run = played.submit(spec)
    assert reused(run) == [] and run.steps[0].decision.differs == ("resume_from",)
    assert dry.steps[0].parts == run.steps[0].parts


def test_folder_that_is_not_a_package_is_refused_with_its_step(played: Played) -> None:
    (played.folder / "folder").mkdir()
    prep = {"environment": {"pip": [str(played.folder / "folder")]}}
    (text,) = problems(played, steps=steps(prep=prep))
    assert "steps.prep.environment.pip" in text and "a folder without pyproject" in text


def test_steps_create_files_with_the_umask_of_the_submitter(played: Played) -> None:
    before = os.umask(0o007)
    try:
        run = played.submit()
    finally:
        os.umask(before)
    assert {played.store.job(one.job_id).spec.umask for one in run.steps} == {"007"}


def test_pipeline_in_a_copied_workspace_gives_the_copy_its_own_id(played: Played) -> None:
    played.workspace.close()
    copy = played.folder / "copied"
    shutil.copytree(played.folder / "w", copy)
    with open_workspace(copy, create=False) as workspace:
        assert workspace.original is not None
        done = submit_pipeline(workspace, played.spec(), wake=False)
    assert "from now on it is independent" in done.warnings[0]
    assert original_of(copy) is None


@pytest.mark.parametrize(
    "change", [{"priority": 5}, {"max_duration": "1h"}, {"retries": 2}, {"tags": {"a": "b"}}]
)
@pytest.mark.long
def test_irrelevant_settings_do_not_affect_reuse(played: Played, change: dict[str, Any]) -> None:
    played.run()
    assert "prep" in reused(played.submit(played.spec(steps=steps(prep=change))))


@pytest.mark.long
def test_ignored_files_do_not_affect_reuse(played: Played) -> None:
    (played.source / ".amlignore").write_text("*.log\n")
    played.run()
    (played.source / "new.log").write_text("x")
    assert reused(played.submit()) == ["prep", "train", "test"]
    (played.source / "new.py").write_text("x = 1")
    run = played.submit()
    assert reused(run) == [] and "source" in run.steps[0].decision.differs


@pytest.mark.long
def test_pipeline_file_next_to_the_scripts_is_not_part_of_their_code(played: Played) -> None:
    file = played.source / "pipeline.yaml"

    def run(comment: str, **prep: Any) -> PlannedRun:
        data = {"name": "digits", "parameters": {"epochs": 3}, "steps": steps(prep=prep)}
        file.write_text(f"# {comment}\n{write_yaml(data)}")
        return played.run(load_pipeline(file))

    first = run("first")
    assert first.spec.file == str(file) and "file" not in first.spec.model_dump()
    assert first.steps[0].snapshot is not None
    assert set(files_of(first.steps[0].snapshot, played.workspace.blobs.open)) == {
        "prep.py",
        "train.py",
        "test.py",
    }
    assert reused(run("second")) == ["prep", "train", "test"]
    # A step that names the file may read it: it is packed, and decides.
    named = run("third", arguments=["--config", "pipeline.yaml"])
    assert named.steps[0].snapshot is not None
    assert "pipeline.yaml" in files_of(named.steps[0].snapshot, played.workspace.blobs.open)
    assert reused(run("fourth", arguments=["--config", "pipeline.yaml"])) == []


@pytest.mark.parametrize(
    ("changes", "is_packed"),
    [
        ({"arguments": ["--config", "${{ parameters.config }}"]}, True),
        ({"environment_variables": {"CONFIG": "/here/größe.yaml"}}, True),
        ({"params": {"config": "größe.yaml"}}, True),
        ({"tags": {"from": "größe.yaml"}}, False),
    ],
    ids=["a parameter", "a variable", "params", "a tag"],
)
def test_a_step_may_read_the_file_of_its_pipeline_if_a_value_names_it(
    played: Played, changes: dict[str, Any], is_packed: bool
) -> None:
    data = {
        "name": "digits",
        "parameters": {"config": "größe.yaml", "epochs": 3},
        "steps": steps(prep=changes),
    }
    file = played.source / "größe.yaml"
    file.write_text(write_yaml(data))
    digest = played.run(load_pipeline(file)).steps[0].snapshot
    assert digest is not None
    assert (file.name in files_of(digest, played.workspace.blobs.open)) is is_packed


def test_only_given_hash_paths_affect_reuse(played: Played) -> None:
    changes = steps(prep={"reuse": {"hash_paths": ["prep.py"]}})
    played.run(played.spec(steps=changes))
    (played.source / "train.py").write_text("print('changed')")
    assert reused(played.submit(played.spec(steps=changes))) == ["prep"]
    (played.source / "prep.py").write_text("print('changed')")
    assert reused(played.submit(played.spec(steps=changes))) == []


@pytest.mark.long
def test_published_pipeline_reuses_by_relevant_files(played: Played) -> None:
    spec = played.spec(steps=steps(prep={"reuse": {"hash_paths": ["prep.py"]}}))
    played.run(spec)
    record = publish(played.workspace, spec, name="digits")
    done = run_published(played.workspace, record, wake=False)
    assert reused(done.run) == ["prep", "train", "test"]
    assert done.pipeline.published == record.id
    played.store.set_published_active(record.id, active=False)
    with pytest.raises(UsageError, match="is disabled; enable it first"):
        run_published(played.workspace, played.store.published_pipeline(record.id), wake=False)


@pytest.mark.long
def test_reuse_can_be_switched_off(played: Played) -> None:
    played.run()
    assert reused(played.submit(regenerate=True)) == []
    run = played.submit(played.spec(steps=steps(prep={"reuse": False})))
    assert decisions(run)["prep"] == "runs: reuse is off for this step"
    assert "reads new output of 'prep'" in decisions(run)["train"]


@pytest.mark.long
def test_failed_run_continues_from_the_failed_step(played: Played) -> None:
    spec = played.spec(steps=steps(prep={"reuse": False}))
    first = played.submit(spec)
    with pytest.raises(UsageError, match="resume it once it has ended"):
        resume_pipeline(played.workspace, first.id, wake=False)
    played.complete_all(first.id, fails="train")
    assert played.store.job(first.id).state is JobState.FAILED
    again = resume_pipeline(played.workspace, first.id, wake=False).run
    assert reused(again) == ["prep"]
    prep = again.steps[0].decision
    assert prep.reason == f"reused from {first.steps[0].job_id}, of the run that is resumed"
    assert prep.to_json()["reason"] == prep.reason
    played.complete_all(again.id)
    ended = played.store.job(again.id)
    assert ended.state is JobState.COMPLETED
    assert ended.properties["resumed_from"] == first.id
    with pytest.raises(UsageError, match="nothing to resume"):
        resume_pipeline(played.workspace, again.id, wake=False)


def test_run_uses_the_packed_code(played: Played) -> None:
    first = played.submit()
    played.complete_all(first.id, fails="train")
    (played.source / "train.py").write_text("print('changed since')")
    again = resume_pipeline(played.workspace, first.id, wake=False).run
    assert again.steps[1].snapshot == first.steps[1].snapshot


def test_a_key_gives_the_first_run(played: Played) -> None:
    played.submit(idempotency_key="once")
    played.submit(idempotency_key="once")
    assert len(played.store.pipelines()) == 1
    assert len(played.store.jobs(JobFilter())) == 4
