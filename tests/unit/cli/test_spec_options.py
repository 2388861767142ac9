"""The options of `submit` give the same spec as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.settings import Settings
from rayjobs.cli.spec_options import _output
from rayjobs.cli.submit import note_submitted, submit, typed_spec
from rayjobs.spec.model import JobSpec, Packages, Resources
from rayjobs.submit.project import Project
from rayjobs.submit.submitting import Submitted
from tests.unit.cli.conftest import Queue, Terminal

OPTIONS = [
    ("--name", "mnist"),
    ("--nodes", "1"),
    ("--procs-per-node", "1"),
    ("--backend", "gloo"),
    ("--cpus-per-proc", "0.5"),
    ("--gpus-per-proc", "0"),
    ("--memory-per-proc", "512MiB"),
    ("--max-duration", "1h30m"),
    ("--grace", "5"),
    ("--stall-timeout", "20m"),
    ("--retries", "2"),
    ("--retries", "node_lost=5"),
    ("--priority", "7"),
    ("--env-var", "A=1=2"),
    ("--env-var", "B="),
    ("--secret", "KEY=env:RAYJOBS_SECRET_KEY"),
    ("--secret", "CERT=file:/etc/cert"),
    ("--tag", "owner=ada"),
    ("--log-cap", "10MiB"),
    ("--env", "/opt/py"),
    ("--resume-from", "/data/checkpoint"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script in a subfolder; the working directory."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(*arguments: str) -> JobSpec:
    """Return the spec of a command line, before it is checked against a target."""
    # The command keeps its help option from the first context: that of the program has both names.
    names: Any = {"help_option_names": ["-h", "--help"]}
    context = submit.make_context("submit", list(arguments), obj=Settings(), **names)
    with context:
        options = dict(context.params)
        return typed_spec(options.pop("script"), options.pop("file"), options, Project())


def base_of(*arguments: str) -> str | None:
    """Return what the packages of a command line are added to."""
    packages = spec_of(*arguments).environment
    assert isinstance(packages, Packages)
    return packages.base


def test_options_and_a_file_give_the_same_spec(project: Path) -> None:
    typed = [word for pair in OPTIONS for word in pair]
    given = spec_of("code/train.py", *typed, "--preemptible", "--cold", "--", "--lr", "0.10")
    (project / "job.yaml").write_text(
        """
name: mnist
script: train.py
source_directory: code
arguments: [--lr, 0.10]
environment: /opt/py
environment_variables: {A: 1=2, B: ""}
secrets:
  KEY: {env: RAYJOBS_SECRET_KEY}
  CERT: {file: /etc/cert}
distribution: {nodes: 1, processes_per_node: 1, backend: gloo}
resources: {cpus: 0.5, gpus: 0, memory: 512MiB}
max_duration: 1h30m
grace: 5
stall_timeout: 20m
retries: {user: 2, node_lost: 5}
priority: 7
tags: {owner: ada}
log_cap: 10MiB
resume_from: /data/checkpoint
preemptible: true
cold: true
"""
    )
    assert given == spec_of("-f", "job.yaml")
    # The resume source is passed on to the script.
    assert given.arguments == (
        *("--lr", "0.10"),
        *("--resume-from", "$AZUREML_DATAREFERENCE_MODEL_LOCATION"),
    )


def test_options_override_a_file(project: Path) -> None:
    (project / "job.yaml").write_text(
        "script: code/train.py\npriority: 3\nresources: {cpus: 2, memory: 1GiB}\ntags: {a: x, b: y}"
    )
    spec = spec_of("-f", "job.yaml", "--cpus-per-proc", "1", "--tag", "b=z", "--", "-x")
    assert spec.priority == 3
    assert spec.resources == Resources(cpus=1.0, memory_gib=1.0)
    assert spec.tags == {"a": "x", "b": "z"}
    assert spec.arguments == ("-x",)


def test_a_package_alone_is_added_to_the_targets_own(project: Path) -> None:
    (project / "own.yaml").write_text("script: code/train.py\nenvironment: {pip: [numpy]}\n")
    (project / "image.yaml").write_text("script: code/train.py\ncontainer: train:2\n")
    (project / "requirements.txt").write_text("numpy\n")
    added = {
        words: base_of(*words)
        for words in [
            ("--pip", "tqdm", "code/train.py"),
            ("--pip", "tqdm", "--env", "requirements.txt", "code/train.py"),
            ("--pip", "tqdm", "--image", "train:2", "code/train.py"),
            ("--pip", "tqdm", "-f", "own.yaml"),
            ("--pip", "tqdm", "-f", "image.yaml"),
        ]
    }
    assert list(added.values()) == ["target", None, None, None, None]


def test_the_source_is_the_scripts_folder(project: Path) -> None:
    spec = spec_of("code/train.py")
    assert (spec.script, spec.source_directory) == ("train.py", str(project / "code"))
    assert spec.name == "train"


@pytest.mark.parametrize("script", ["code/train.py", "train.py"])
def test_a_wider_source_may_be_named(project: Path, script: str) -> None:
    source = "." if "/" in script else "code"
    spec = spec_of("--source", source, script)
    assert spec.source_directory is not None
    assert spec.script is not None
    assert Path(spec.source_directory) / spec.script == project / "code" / "train.py"


def test_a_command_packs_a_folder_only_when_it_is_given_one(project: Path) -> None:
    spec = spec_of("--command", "echo $HOME | wc")
    assert (spec.command, spec.source_directory) == ("echo $HOME | wc", None)
    spec = spec_of("--source", ".", "--command", "echo $HOME | wc")
    assert spec.source_directory is not None
    assert Path(spec.source_directory).resolve() == project.resolve()


def test_all_mistakes_are_reported_at_once_by_the_options_typed(
    project: Path, terminal: Terminal
) -> None:
    done = terminal.type(
        *("submit", "code/tarin.py", "--nodes", "two", "--max-duration", "3x", "--tag", "lonely"),
        *("--secret", "PASSWORD=hunter2", "--memory-per-proc", "big", "--retries", "nobody=1"),
    )
    assert done.code == 2
    assert "7 problems" in done.err
    for part in (
        "--nodes: 'two' is not a whole number",
        "--max-duration: '3x'",
        "--tag: 'lonely'",
        "--secret: 'PASSWORD'",
        "--memory-per-proc: 'big'",
        "--retries nobody",
        "Did you mean `train.py`?",
    ):
        assert part in done.err
    assert "hunter2" not in done.err
    assert not (project / ".rayjobs").exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("code/train.py", "--epochs", "3"), "Put arguments of the script after `--`"),
        (("code/train.py", "3"), "rayjobs submit code/train.py -- 3"),
        ((), "name a script"),
        (("code/train.py", "--attach", "-d"), "--attach"),
    ],
)
def test_wrong_usage_suggests_the_correct_command(
    project: Path, terminal: Terminal, arguments: tuple[str, ...], hint: str
) -> None:
    done = terminal.type("submit", *arguments)
    assert done.code == 2
    assert hint in done.err
    assert done.out == ""


def test_a_dry_run_leaves_nothing(project: Path, terminal: Terminal, own_home: Path) -> None:
    done = terminal.type("submit", "--dry-run", "--json", "code/train.py")
    plan = json.loads(done.out)
    assert plan["would_wait"] is True
    assert plan["plan"]["hosts"][0]["argv"] == ["train.py"]
    assert plan["plan"]["shape"]["nodes"] == 1
    assert list(own_home.iterdir()) == []
    shown = terminal.type("submit", "--dry-run", "code/train.py")
    assert "the start of target 'local'" in shown.out
    assert list(own_home.iterdir()) == []


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("gloo", ("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4", "MASTER_ADDR", "python train.py")),
        ("horovod-gloo", ("HOROVOD_RANK=3 HOROVOD_SIZE=4", "HOROVOD_CONTROLLER=gloo")),
    ],
)
def test_dry_run_shows_the_rank_variables(
    project: Path,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    words: tuple[str, ...],
) -> None:
    # Other tests check missing resources of the machine.
    monkeypatch.setattr("rayjobs.environments.mpi_checks.check", no_problem)
    shape = ("--nodes", "2", "--procs-per-node", "2", "--backend", backend)
    shown = terminal.type("submit", "--dry-run", *shape, "code/train.py").out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("Rank ")] == [
        *("0", "1", "2", "3")
    ]
    assert "the attempt host of each node" in shown
    for word in words:
        assert word in shown


def no_problem(*_args: object, **_options: object) -> list[object]:
    return []


def test_dry_run_shows_the_plan_of_a_single_process(project: Path, terminal: Terminal) -> None:
    shown = terminal.type("submit", "--dry-run", "code/train.py", "--", "--lr", "a b").out
    assert "attempt host, once for each process: python train.py --lr 'a b'" in shown
    assert "Rank 0" not in shown
    shown = terminal.type("submit", "--dry-run", "--command", "nvidia-smi; ls").out
    assert "/bin/sh -c 'nvidia-smi; ls'" in shown


def test_a_dry_run_of_many_ranks_shows_the_first_and_the_last(
    project: Path, terminal: Terminal
) -> None:
    shape = ("--procs-per-node", "32", "--cpus-per-proc", "0", "--backend", "gloo")
    shown = terminal.type("submit", "--dry-run", *shape, "code/train.py").out
    numbers = [line.split()[1] for line in shown.splitlines() if line.startswith("Rank ")]
    assert numbers == [*map(str, range(7)), "31"]


def test_unsatisfiable_job_is_refused(project: Path, terminal: Terminal) -> None:
    done = terminal.type("submit", "-d", "--gpus-per-proc", "1000", "code/train.py")
    assert done.code == 4
    assert "1000 GPUs" in done.err


def test_remaining_fields_are_checked_despite_a_mistake(project: Path, terminal: Terminal) -> None:
    done = terminal.type(
        *("submit", "code/train.py", "--nodes", "2", "--max-duration", "soon", "--tag", "x"),
        *("--gpus-per-proc", "1.5"),
    )
    assert done.code == 2
    for part in ("soon", "gloo", "1.5 GPUs", "'x' has no NAME="):
        assert part in done.err, done.err


def test_unplaceable_resources_are_named_by_their_option(
    own_home: Path, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    done = terminal.type("submit", "--gpus-per-proc", "64", str(tmp_path / "train.py"))
    assert done.code == 4
    assert "--gpus-per-proc: the job asks for 64 GPUs" in done.err
    assert "Lower --gpus-per-proc" in done.err
    assert "resources.gpus" not in done.err
    # In a file the field has its name in the file.
    (tmp_path / "job.yaml").write_text("script: train.py\nresources: {gpus: 64}\n")
    filed = terminal.type("submit", "-f", str(tmp_path / "job.yaml"))
    assert "resources.gpus: the job asks for 64 GPUs" in filed.err


def test_sweep_file_is_refused_with_a_hint_to_the_sweep_command(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("job: {script: train.py}\nsampling: {type: random}\nmetric: loss\n")
    done = terminal.type("submit", "-f", str(file))
    assert done.code == 2
    assert f"describes a sweep, not a job. Submit it with:\n  rayjobs sweep create -f {file}" in (
        done.err
    )


def test_a_name_given_twice_is_refused_with_both_values(terminal: Terminal, project: Path) -> None:
    done = terminal.type(
        *("submit", "code/train.py", "--dry-run"),
        *("--input", "a=workspaceblobstore/x", "--input", "a=workspaceblobstore/y"),
        *("--output", "o=workspaceblobstore/x", "--output", "o=workspaceblobstore/y"),
        *("--tag", "t=1", "--tag", "t=2", "--env-var", "V=1", "--env-var", "V=2"),
        *("--tag", "same=1", "--tag", "same=1", "--retries", "2", "--retries", "3"),
        *("--secret", "S=env:RAYJOBS_SECRET_A", "--secret", "S=env:RAYJOBS_SECRET_B"),
    )
    assert done.code == 2
    for text in (
        "--input: 'a' is given as 'a=workspaceblobstore/x' and as 'a=workspaceblobstore/y'. Give",
        "--output: 'o' is given as",
        "--tag: 't' is given as 't=1' and as 't=2'",
        "--env-var: 'V' is given as",
        "--retries: 'user' is given as '2' and as '3'",
        "--secret: 'S' is given twice",
    ):
        assert text in done.err, done.err
    assert "SECRET_A" not in done.err
    assert "same" not in done.err


def test_a_wrong_backend_is_one_problem_and_an_input_is_named_by_its_option(
    own_home: Path, terminal: Terminal
) -> None:
    script = own_home / "train.py"
    script.touch()
    shape = ("--procs-per-node", "2", "--backend", "glo", "--input", "a b=workspaceblobstore/x")
    done = terminal.type("submit", "-d", *shape, str(script))
    assert done.code == 2
    assert "--backend: " in done.err
    assert "none, with" not in done.err
    assert "--input a b: " in done.err
    assert "inputs.a b" not in done.err


@pytest.mark.parametrize("image", ["/gone/image.tar", "docker-archive:/gone/image.tar"])
def test_a_missing_image_is_refused_before_it_is_submitted(
    own_home: Path, terminal: Terminal, image: str
) -> None:
    done = terminal.type("submit", "-d", "--image", image, "--command", "ls /")
    assert done.code == 2
    assert "there is no /gone/image.tar on this node" in done.err
    assert "--image" in done.err
    assert terminal.type("ls", "-q").out == ""


def test_reused_key_is_reported_in_one_sentence(
    queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    job = queue.submit()
    note_submitted(Settings(), Submitted(job, created=False), queue.workspace)
    stderr = capsys.readouterr().err
    assert stderr == f"nothing was submitted: job {job.id} has this key\n"


def test_output_may_overwrite_stored_files() -> None:
    place = "photos/made"
    assert _output(f"made={place}:overwrite") == ("made", {"destination": place, "overwrite": True})
    assert _output(f"made={place}") == ("made", {"destination": place})
    assert _output("made=photos/12:30") == ("made", {"destination": "photos/12:30"})
    assert _output("made") == ("made", {})
    with pytest.raises(ValueError, match="and `:overwrite` replaces stored files"):
        _output(f"made={place}:overwite")


def test_output_accepts_a_mode() -> None:
    place = "photos/made"
    assert _output(f"made={place}:mount") == ("made", {"destination": place, "mode": "mount"})
    assert _output(f"made={place}:upload:overwrite") == (
        "made",
        {"destination": place, "mode": "upload", "overwrite": True},
    )
    for wrong in ("download", "direct", "mont"):
        with pytest.raises(ValueError, match="the modes of an output are upload, mount"):
            _output(f"made={place}:{wrong}")
