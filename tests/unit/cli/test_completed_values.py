"""Every option and argument with known values completes them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rayjobs.cli.completing import ARGUMENTS, FILES_OF_JOB, OPTIONS, SOURCES
from rayjobs.cli.main import main
from rayjobs.cli.params import FileName, Names
from rayjobs.core.paths import TargetPaths, home
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.models import registry
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter, NewSweep
from tests.unit.cli.conftest import Queue, leaves
from tests.unit.cli.test_completion import completed

# Options without choices: numbers, times, sizes, new names and free text. Add each new option
# here, or give it a source in `completing`.
FREE = {
    *("--nodes", "--procs-per-node", "--cpus-per-proc", "--gpus-per-proc", "--memory-per-proc"),
    *("--max-duration", "--grace", "--stall-timeout", "--priority", "--array", "--log-cap"),
    *("--name", "--pip", "--env-var", "--command", "--idempotency-key", "--display-name"),
    *("--hold", "--description", "--property", "--path", "--framework", "--rank", "--address"),
    *("--endpoint", "--region", "--profile", "--access-key-env", "--secret-key-env"),
    *("--session-token-env", "--max-size", "--set", "--since", "--grep", "--credentials"),
    *("--image", "--shm-size", "--docker-arg", "--parameter", "--label", "--published"),
    *("--fetch", "--code", "--from", "--remove", "--store", "--weights", "--model"),
    *("--blobs", "--endpoint-url", "--notify"),
    *("--oidc-issuer", "--oidc-client", "--oidc-claim", "--oidc-groups", "--oidc-role"),
    *("--every", "--at", "--on", "--start", "--time-zone", "--path-parameter", "--epochs"),
    *("--batch-size", "--warmup-epochs", "--learning-rate", "--random-seed", "--patience"),
    "--print-frequency",
    *("--host", "--port", "--days", "--bucket-address", "--oidc-domain", "--issuer", "--subject"),
}
FREE_ARGUMENTS = {
    *("port ports", "notify add receiver", "notify mail server", "notify rm name"),
    *("submit extra", "verify-resume extra", "rerun extra", "datastore add name"),
    *("datastore add url", "model register name", "target create name", "pipeline why-rerun step"),
    *("azureml map mappings", "env build environment", "env diff one", "env diff other"),
    *("env export environment", "env lock environment", "env show environment"),
    *("env vendor environment", "env vendor folder", "db move url", "pipeline run extra"),
    *("user add name", "user link name", "user revoke name", "login address"),
    "images convert folder",
}


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    """Yield every option and argument with a value, with the words of its command."""
    for words in leaves():
        command: click.Command = main
        context = click.Context(main)
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(context, word)
            assert found is not None
            command = found
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False):
                yield " ".join(words), parameter


def long_name(parameter: click.Parameter) -> str:
    return next((one for one in parameter.opts if one.startswith("--")), parameter.opts[0])


def test_every_option_completes_its_values_or_is_listed_as_free() -> None:
    undecided = []
    for words, parameter in parameters():
        if type(parameter.type) is not type(click.STRING):
            continue  # the type itself completes, or is a number
        name = f"{words} {parameter.name}"
        is_argument = isinstance(parameter, click.Argument)
        if name not in FREE_ARGUMENTS if is_argument else long_name(parameter) not in FREE:
            undecided.append(f"{words} {long_name(parameter)}")
    assert undecided == []


def test_every_completion_source_exists() -> None:
    named = {
        parameter.type.source for _, parameter in parameters() if isinstance(parameter.type, Names)
    }
    assert named <= {*SOURCES, FILES_OF_JOB}
    known = {f"{words} {parameter.name}" for words, parameter in parameters()}
    assert set(ARGUMENTS) <= known
    typed = {long_name(parameter) for _, parameter in parameters()}
    assert {one.rpartition(" ")[2] for one in OPTIONS} - typed == set()


@pytest.fixture
def filled(queue: Queue) -> Queue:
    """A workspace with one object of every kind."""
    store = queue.workspace.store
    queue.completed("mnist", arguments=("--lr", "0.1"), tags={"owner": "ada"})
    queue.submit("other")
    store.put_sweep(
        NewSweep(
            base=JobSpec(name="search", script="t.py"),
            definition={},
            driver="m:f",
            experiment="search",
            snapshot=None,
            user="ada",
            name="search",
        )
    )
    folder = queue.workspace.path.parent / "data"
    folder.mkdir()
    store.catalogue.add_datastore(DatastoreRecord("photos", "local", {"root": str(folder)}))
    paths = TargetPaths.of("lab", under=home())
    paths.root.mkdir(parents=True)
    record = {"name": "lab", "kind": "attached", "address": "10.0.0.5:6379"}
    (paths.root / "target.json").write_text(json.dumps(record))
    return queue


CASES = [
    ("submit --backend g", ["gloo"]),
    ("submit --target l", ["local", "lab"]),
    ("submit --after mn", ["{job}"]),
    ("submit --after mnist:", ["mnist:ok", "mnist:any"]),
    ("submit -e s", ["search"]),
    ("submit --retries n", ["node_lost="]),
    ("submit --input data=ph", ["data=photos/"]),
    ("submit --output out=ph", ["out=photos/"]),
    ("submit --secret KEY=", ["KEY=env:", "KEY=file:"]),
    ("submit --tag o", ["owner=ada"]),
    ("submit --env ./", ["./"]),
    ("ls --columns lo", ["loss"]),
    ("ls --columns loss,lr", ["loss,lr"]),
    ("ls --sort lo", ["loss"]),
    ("ls --filter sta", ["state"]),
    ("ls -s fail", ["failed"]),
    ("ls --parent sea", ["{sweep}"]),
    ("update --untag o", ["owner"]),
    ("metrics {job} l", ["loss"]),
    ("files {job} out", ["outputs/model.pt"]),
    ("sweep plot ", ["{sweep}"]),
    ("sweep best ", ["{sweep}"]),
    ("datastore rm p", ["photos"]),
    ("data ls ph", ["photos/"]),
    ("target start la", ["lab"]),
    ("show mn", ["{job}"]),
    ("why mn", []),  # the job has ended
    ("cancel -e mn", ["mnist"]),
]


@pytest.mark.parametrize(("words", "expected"), CASES, ids=[words for words, _ in CASES])
def test_values_are_offered(words: str, expected: list[str], filled: Queue) -> None:
    ids = {
        job.kind: job.id for job in filled.workspace.store.jobs(JobFilter(newest_first=False))[:1]
    }
    sweep = next(job.id for job in filled.workspace.store.jobs() if job.kind == "sweep")
    names = {"job": ids["job"], "sweep": sweep}
    offered = offered_for(words.format(**names))
    assert sorted(offered) == sorted(one.format(**names) for one in expected)


def offered_for(words: str) -> list[str]:
    """Return click's completions, in this process."""
    from click.shell_completion import ShellComplete

    parts = words.split(" ")
    items = ShellComplete(main, {}, "rayjobs", "X").get_completions(parts[:-1], parts[-1])
    return [item.value for item in items]


@pytest.mark.long
def test_bash_completes_values_with_equals_signs_and_colons(filled: Queue) -> None:
    # Bash gives five words for the last one, and replaces only what follows the last break.
    line = "rayjobs submit --input data=ph"
    assert completed(line, line=line) == ["photos/"]
    line = "rayjobs submit --after mnist:a"
    assert completed(line, line=line) == ["any"]


@pytest.mark.long
def test_completion_imports_neither_ray_nor_torch(filled: Queue) -> None:
    code = (
        "import sys\n"
        "from click.shell_completion import ShellComplete\n"
        "from rayjobs.cli.main import main\n"
        "shell = ShellComplete(main, {}, 'rayjobs', 'X')\n"
        "for words in (['submit', '--target'], ['submit', '--after'], ['ls', '--columns'],\n"
        "              ['data', 'show'], ['sweep', 'plot'], ['model', 'show']):\n"
        "    shell.get_completions(words, '')\n"
        "print([name for name in ('ray', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_unreadable_names_of_targets_and_secrets_are_not_offered(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered_for("target secret rm --target none ") == []

    def refuse(*, home: Path) -> list[str]:
        raise PermissionError(home)

    monkeypatch.setattr("rayjobs.target.record.all_targets", refuse)
    assert offered_for("target start ") == []


def test_aliases_of_models_are_offered_as_they_are_looked_up(filled: Queue) -> None:
    store = filled.workspace.store
    weights = filled.workspace.path.parent / "digits.pt"
    weights.write_bytes(b"weights")
    registry.register_path(filled.workspace, name="digits", path=weights)
    store.set_model_alias("digits", "live", 1)
    offered = offered_for("images score --model digits")
    assert offered == ["digits", "digits:1", "digits@live"]
    assert [registry.find(store, text).version for text in offered] == [1, 1, 1]


def test_without_a_workspace_nothing_is_offered(own_home: Path) -> None:
    assert offered_for("ls --columns ") == []
    assert offered_for("sweep plot ") == []
    assert isinstance(next(p for w, p in parameters() if w == "simulate").type, FileName)
