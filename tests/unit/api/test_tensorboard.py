"""TensorBoard: event files of runs are found, served and written."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tensorboardX import SummaryWriter

from rayjobs import Workspace
from rayjobs.api.tensorboard import EventFiles
from rayjobs.azureml import tensorboard as azureml_tensorboard
from rayjobs.core.errors import UsageError
from rayjobs.jobs.hosts import HostRecord
from tests.unit.cli.conftest import Terminal, terminal
from tests.unit.models.conftest import Runs

__all__ = ["terminal"]


@pytest.fixture
def runs(own_home: Path, tmp_path: Path) -> Iterator[Runs]:
    workspace = Workspace.create("w", path=Path(os.environ["RAYJOBS_WORKSPACE"]))
    yield Runs(workspace, tmp_path / "node")
    workspace.close()


def write_events(runs: Runs) -> str:
    """Return the id of a run whose script wrote event files."""
    job = runs.begin()
    with SummaryWriter(str(runs.paths(job).work / "outputs" / "tb")) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1.0 / (step + 1), step)
    runs.write(job, other__txt=b"no events")
    runs.end(job)
    return job.id


def test_event_files_are_fetched_and_missing_ones_are_reported(
    runs: Runs, terminal: Terminal, tmp_path: Path
) -> None:
    run = write_events(runs)
    done = terminal.type("tensorboard", run, "--fetch", str(tmp_path / "events"))
    assert done.code == 0, done.err
    (file,) = (path for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "tfevents" in file.name and file.is_relative_to(tmp_path / "events" / run)
    none = runs.trained()
    refused = terminal.type("tensorboard", none.id)
    assert (refused.code, "SummaryWriter(" in refused.err) == (3, True)
    assert terminal.type("tensorboard", "nothing").code == 3


def test_the_event_file_of_a_running_job_grows(runs: Runs, tmp_path: Path) -> None:
    """It changes constantly, so it is stored only at the end; and TensorBoard keeps it open."""
    job = runs.begin()
    paths = runs.paths(job)
    hosts = [HostRecord(root=str(paths.root))]
    runs.workspace.store.set_hosts(job.id, attempt=1, hosts=hosts)
    folder = paths.work / "outputs" / "tb"
    folder.mkdir()
    events = folder / "events.out.tfevents.1.host"
    (folder / "tfevents-link").symlink_to("/etc/hostname")
    shown = EventFiles(runs.workspace.opened, [job.id], tmp_path / "shown")
    assert shown.refresh() == 0
    events.write_bytes(b"one")
    assert shown.refresh() == 1
    copy = tmp_path / "shown" / job.id / "outputs" / "tb" / events.name
    with copy.open("rb") as reader:
        assert reader.read() == b"one"
        with events.open("ab") as file:
            file.write(b"two")
        assert shown.refresh() == 1
        assert reader.read() == b"two"
        with events.open("ab") as file:
            file.write(b"three")
        runs.end(job)
        shutil.rmtree(paths.root)
        assert shown.refresh() == 1
        assert reader.read() == b"three"
    assert [path.name for path in (tmp_path / "shown").rglob("*tfevents*")] == [events.name]


def test_rewritten_event_files_replace_their_copies(runs: Runs, tmp_path: Path) -> None:
    job = runs.begin()
    paths = runs.paths(job)
    hosts = [HostRecord(root=str(paths.root))]
    runs.workspace.store.set_hosts(job.id, attempt=1, hosts=hosts)
    events = paths.work / "outputs" / "tfevents"
    shown = EventFiles(runs.workspace.opened, [job.id], tmp_path / "shown")
    copy = tmp_path / "shown" / job.id / "outputs" / events.name
    for text in (b"first and long", b"second"):
        events.write_bytes(text)
        assert shown.refresh() == 1
        assert copy.read_bytes() == text
    events.write_bytes(b"last, other bytes")
    runs.end(job)
    shutil.rmtree(paths.root)
    assert shown.refresh() == 1
    assert copy.read_bytes() == b"last, other bytes"


def test_missing_tensorboard_names_the_remedy(
    runs: Runs, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_events(runs)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = terminal.type("tensorboard", run)
    assert done.code == 2 and "rayjobs[tensorboard]" in done.err


@pytest.mark.long
def test_azure_ml_tensorboard_answers_once_its_address_is_printed(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    run = runs.workspace.get_run(write_events(runs))
    board = azureml_tensorboard.Tensorboard([run], port=0)
    try:
        url = board.start()
        assert capsys.readouterr().out == f"{url}\n"
        with urllib.request.urlopen(f"{url}data/plugin/scalars/tags", timeout=100) as answer:
            assert answer.status == 200 and isinstance(json.load(answer), dict)
        taken = azureml_tensorboard.Tensorboard([run], port=urlsplit(url).port or 0)
        with pytest.raises(UsageError, match="TensorBoard did not start"):
            taken.start()
        assert taken._temporary is None
    finally:
        board.stop()


@pytest.mark.long
def test_metrics_become_event_files(runs: Runs, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    job = runs.begin()
    runs.log(job, "loss", [0.5, 0.25])
    azureml_tensorboard.export_to_tensorboard(runs.workspace.get_run(job.id), tmp_path / "events")
    (file,) = (tmp_path / "events" / job.id).iterdir()
    assert "tfevents" in file.name and b"loss" in file.read_bytes()
