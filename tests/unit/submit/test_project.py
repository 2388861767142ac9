"""Defaults of a project: which file, which keys, and what takes precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs import ScriptRunConfig
from rayjobs.core.errors import SpecError
from rayjobs.submit.project import (
    Project,
    default_target,
    find_file,
    load_project,
    use_target,
    with_defaults,
)


@pytest.fixture
def folder(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project" / "deep"
    made.mkdir(parents=True)
    monkeypatch.chdir(made)
    return made


def write(folder: Path, text: str) -> Path:
    path = folder / "rayjobs.yaml"
    path.write_text(text)
    return path


def test_the_nearest_file_upward_counts(folder: Path) -> None:
    assert load_project() == Project()
    above = write(folder.parent, "target: lab\n")
    assert find_file() == above
    nearer = write(folder, "experiment: cats\n")
    assert find_file() == nearer
    assert load_project().target is None


def test_file_of_comments_sets_nothing(folder: Path) -> None:
    path = write(folder, "# target: lab\n")
    assert load_project() == Project(path=path)


def test_job_files_and_options_come_before_a_projects_defaults(folder: Path) -> None:
    write(folder, "target: lab\njob: {priority: 5, resources: {gpus: 1, cpus: 2}, tags: {a: x}}\n")
    data = with_defaults(
        {"script": "a.py", "resources": {"cpus": 4}, "tags": {"b": "y"}}, load_project()
    )
    assert data["target"] == "lab"
    assert data["priority"] == 5
    assert data["resources"] == {"gpus": 1, "cpus": 4}
    assert data["tags"] == {"a": "x", "b": "y"}
    assert with_defaults({"script": "a.py", "target": "b"}, load_project())["target"] == "b"


def test_all_problems_are_reported_together(folder: Path) -> None:
    write(
        folder,
        "tarjet: lab\nexperiment: 3\njob: {script: a.py, priorty: 1, resources: {cpus: -1}}\n",
    )
    with pytest.raises(SpecError) as raised:
        load_project()
    assert {problem.path for problem in raised.value.problems} == {
        "tarjet",
        "experiment",
        "job.script",
        "job.priorty",
        "job.resources.cpus",
    }
    assert "rayjobs.yaml has 5 problems" in str(raised.value)


def test_order_of_the_settings_that_name_the_target(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> tuple[str, str]:
        found = default_target()
        return found.name, found.origin

    assert chosen() == ("local", "default")
    use_target("mine")
    assert chosen() == ("mine", "rayjobs target use")
    path = write(folder, "target: ours\n")
    assert chosen() == ("ours", str(path))
    monkeypatch.setenv("RAYJOBS_TARGET", "theirs")
    assert chosen() == ("theirs", "RAYJOBS_TARGET")
    monkeypatch.delenv("RAYJOBS_TARGET")
    path.unlink()
    use_target("local")
    assert chosen() == ("local", "default")


def test_the_python_api_takes_the_default_target(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_TARGET", "lab")
    assert ScriptRunConfig(".", "a.py").run_config.target == "lab"
    assert ScriptRunConfig(".", "a.py", compute_target="local").run_config.target == "local"
