"""Pipelines whose data is in S3: every mode, several consumers, reuse that checks the storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.api.experiment import Experiment
from rayjobs.api.workspace import Workspace
from rayjobs.datastore import Datastore, FileDataset, OutputFileDatasetConfig
from rayjobs.datastore.backends.s3 import S3Backend
from rayjobs.pipelines import Pipeline, PipelineData, PipelineRun, PythonScriptStep
from tests.storage.profile import aws_profile
from tests.storage.server import S3Server
from tests.support.jobs import Jobs

__all__ = ["aws_profile"]

pytestmark = [pytest.mark.ray, pytest.mark.storage]

SPLIT = """
import pathlib, sys
numbers, table, live = map(pathlib.Path, sys.argv[1:])
for n in range(3):
    (numbers / "deep").mkdir(exist_ok=True)
    (numbers / "deep" / f"{n}.txt").write_text(str(n))
(table / "t.csv").write_text("n\\n10\\n20\\n")
(live / "log.txt").write_text("100")
"""
# Adds up all numbers below its inputs; its output is one file.
ADD = """
import pathlib, sys
out, *given = map(pathlib.Path, sys.argv[1:])
files = [file for one in given for file in ([one] if one.is_file() else one.rglob("*"))]
texts = [file.read_text() for file in files if file.is_file()]
out.write_text(str(sum(int(word) for text in texts for word in text.split() if word.isdigit())))
"""
JOIN = """
import pathlib, sys
out, *given = map(pathlib.Path, sys.argv[1:])
(out / "all.txt").write_text(" ".join(one.read_text() for one in given))
"""


class OnS3:
    """split → left, right → join, with all data in a separate datastore in S3."""

    def __init__(self, ws: Workspace, server: S3Server, profile: str, folder: Path) -> None:
        record = server.record()
        given = record.settings
        self.store = Datastore.register_s3(
            ws,
            "photos",
            given["bucket"],
            prefix=given["prefix"],
            endpoint=server.endpoint,
            profile=profile,
        )
        self.backend = S3Backend.from_record(record)
        self.experiment = Experiment(ws, "s3")
        (folder / "src").mkdir()
        for name, text in (("split", SPLIT), ("add", ADD), ("join", JOIN)):
            (folder / "src" / f"{name}.py").write_text(text)
        common: dict[str, Any] = {
            "source_directory": str(folder / "src"),
            "compute_target": "local",
        }
        numbers = PipelineData("numbers", datastore=self.store, is_directory=True)
        table: Any = OutputFileDatasetConfig("table", (self.store, "tables/{run-id}")).as_upload()
        live: Any = OutputFileDatasetConfig("live", (self.store, "live/{run-id}")).as_mount()
        left, right = (PipelineData(name, datastore=self.store) for name in ("left", "right"))
        joined = OutputFileDatasetConfig("joined", (self.store, "joined/{run-id}"))
        joined = joined.register_on_complete("joined")
        split = PythonScriptStep(
            "split.py", "split", [numbers, table, live], outputs=[numbers, table, live], **common
        )
        reads: list[Any] = [numbers, table.as_input("rows").as_mount()]
        one = PythonScriptStep(
            "add.py", "left", [left, *reads], inputs=reads, outputs=[left], **common
        )
        reads = [numbers.as_download(), live.as_input("lines").as_download()]
        other = PythonScriptStep(
            "add.py", "right", [right, *reads], inputs=reads, outputs=[right], **common
        )
        last = PythonScriptStep(
            "join.py",
            "join",
            [joined, left.as_download(), right.as_mount()],
            inputs=[left.as_download(), right.as_mount()],
            outputs=[joined],
            **common,
        )
        assert split is not None
        self.pipeline = Pipeline(ws, [one, other, last])

    def run(self) -> PipelineRun:
        """Run the pipeline to its end."""
        run = self.experiment.submit(self.pipeline)
        assert isinstance(run, PipelineRun)
        assert run.wait_for_completion(show_output=False) == "Finished"
        return run

    def files(self) -> dict[str, str]:
        """Return path → mark of all objects in the datastore."""
        return {one.path: str(one.etag) for one in self.backend.walk("")}


@pytest.fixture
def on_s3(
    jobs: Jobs,
    s3_server: S3Server,
    aws_profile: str,
    tmp_path: Path,
) -> Iterator[OnS3]:
    workspace = Workspace(path=jobs.workspace.path)
    yield OnS3(workspace, s3_server, aws_profile, tmp_path)
    workspace.close()


def ran(run: PipelineRun) -> list[str]:
    return [step.step_name for step in run.get_steps() if not step.is_reused]


def test_steps_pass_data_through_s3_in_every_mode(on_s3: OnS3, tmp_path: Path) -> None:
    first = on_s3.run()
    ids = {step.step_name: step.id for step in first.get_steps()}
    split = ids["split"]
    assert {*on_s3.files()} == {
        *(f"azureml/{split}/numbers/deep/{n}.txt" for n in range(3)),
        f"tables/{split}/t.csv",
        f"live/{split}/log.txt",
        f"azureml/{ids['left']}/left",
        f"azureml/{ids['right']}/right",
        f"joined/{ids['join']}/all.txt",
    }
    output = first.find_step_run("join")[0].get_output_data("joined")
    assert output.download(str(tmp_path / "got")) == 1
    assert (tmp_path / "got" / output.path_on_datastore / "all.txt").read_text() == "33 103"
    assert output.datastore.name == "photos"
    dataset = on_s3.experiment.workspace.datasets["joined"]
    assert isinstance(dataset, FileDataset) and [*dataset.to_path()] == ["/all.txt"]

    # Unchanged: nothing runs, and nothing is stored again.
    before = on_s3.files()
    again = on_s3.run()
    assert ran(again) == [] and on_s3.files() == before
    reused = again.find_step_run("join")[0].get_output_data("joined")
    assert reused.download(str(tmp_path / "again")) == 1

    # One object was overwritten in S3: its step and all that read it run, and report the reason.
    client, prefix = on_s3.backend.settings.client(), on_s3.backend.settings.prefix
    bucket = on_s3.backend.settings.bucket
    client.put_object(Bucket=bucket, Key=f"{prefix}/tables/{split}/t.csv", Body=b"n\n10\n99\n")
    changed = on_s3.run()
    assert ran(changed) == ["split", "left", "right", "join"]
    decision = str(changed.find_step_run("split")[0].decision["reason"])
    assert f"photos/tables/{split}/t.csv was overwritten" in decision

    # One object is missing: an older complete output is reused if there is one, else the step runs.
    left = changed.find_step_run("left")[0].id
    client.delete_object(Bucket=bucket, Key=f"{prefix}/azureml/{left}/left")
    mended = on_s3.run()
    assert ran(mended) == ["left", "join"]
    decision = str(mended.find_step_run("left")[0].decision["reason"])
    assert f"photos/azureml/{left}/left is missing" in decision
