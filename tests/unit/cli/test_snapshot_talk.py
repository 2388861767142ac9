"""The messages of `submit` and `--dry-run` about the source directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayjobs.core.text import MIB
from rayjobs.snapshots import Summary, limits, survey
from tests.unit.cli.conftest import Terminal


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path) -> Path:
    """The working directory: a script, a file with a key, a file named like a secret."""
    del own_home
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "keys.py").write_text('key = "AKIA' + 'QWERTYUIOPASDFGH"\n')
    (folder / ".env").write_text("A=1\n")
    (folder / "data" / "big.bin").write_bytes(b"\0" * (21 * MIB))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("rayjobs.submit.submitting.wake_or_start", lambda *_: False)
    return folder


@pytest.mark.usefixtures("project")
def test_dry_run_shows_size_count_largest_and_excluded_files(terminal: Terminal) -> None:
    shown = terminal.type("submit", "--dry-run", "train.py").out
    assert "3 files, 21 MiB; largest: data/big.bin (21 MiB)" in shown
    assert ".env (likely secret)" in shown
    assert "written in: keys.py" in shown
    plan = json.loads(terminal.type("submit", "--dry-run", "--json", "train.py").out)
    assert plan["snapshot"]["files"] == 3
    assert plan["snapshot"]["largest"] == [{"path": "data/big.bin", "size": 21 * MIB}]
    assert [one["path"] for one in plan["snapshot"]["left_out"]] == [".env"]
    assert any("keys.py" in one for one in plan["warnings"])


@pytest.mark.long
def test_a_warning_is_shown_once_per_change(project: Path, terminal: Terminal) -> None:
    first = terminal.type("submit", "-d", "train.py").err
    assert "keys.py" in first
    assert ".env" in first
    again = terminal.type("submit", "-d", "train.py").err
    assert "warning" not in again
    (project / ".npmrc").write_text("token\n")
    changed = terminal.type("submit", "-d", "train.py").err
    assert ".npmrc" in changed
    assert "keys.py" not in changed
    assert "keys.py" in terminal.type("submit", "-d", "-v", "train.py").err


@pytest.mark.usefixtures("project")
@pytest.mark.long
def test_a_quiet_submit_does_not_count_as_having_shown_a_warning(terminal: Terminal) -> None:
    assert "warning" not in terminal.type("submit", "-q", "train.py").err
    assert "keys.py" in terminal.type("submit", "-d", "train.py").err


@pytest.mark.usefixtures("project")
@pytest.mark.long
def test_json_always_has_all_warnings(terminal: Terminal) -> None:
    terminal.type("submit", "-d", "train.py")
    answer = json.loads(terminal.type("submit", "-d", "--json", "train.py").out)
    assert any("keys.py" in one for one in answer["warnings"])


@pytest.mark.long
def test_a_warning_that_comes_back_is_shown_again(project: Path, terminal: Terminal) -> None:
    terminal.type("submit", "-d", "train.py")
    (project / "keys.py").write_text("")
    terminal.type("submit", "-d", "train.py")
    (project / "keys.py").write_text('key = "AKIA' + 'QWERTYUIOPASDFGH"\n')
    assert "keys.py" in terminal.type("submit", "-d", "train.py").err


@pytest.mark.long
def test_a_large_snapshot_gets_one_line_at_each_submit(project: Path, terminal: Terminal) -> None:
    for _ in range(2):
        stderr = terminal.type("submit", "-d", "train.py").err
        (line,) = [one for one in stderr.splitlines() if one.startswith("snapshot: ")]
        assert "data/big.bin (21 MiB)" in line
        assert "left out: .env" in line
    (project / "data" / "big.bin").unlink()
    assert "snapshot: " not in terminal.type("submit", "-d", "train.py").err


@pytest.mark.usefixtures("project")
def test_a_command_without_a_source_packs_nothing(terminal: Terminal) -> None:
    done = terminal.type("submit", "-d", "--command", "nvidia-smi")
    shown = json.loads(terminal.type("show", "--json", done.out.strip()).out)
    assert shown["snapshot"] is None
    assert "warning" not in done.err
    plan = terminal.type("submit", "--dry-run", "--command", "nvidia-smi").out
    assert "none: nothing is packed" in plan


@pytest.mark.usefixtures("project")
@pytest.mark.long
def test_command_naming_a_local_file_causes_a_warning(terminal: Terminal) -> None:
    done = terminal.type("submit", "-d", "--command", "python train.py && ls /")
    assert "the command names train.py" in done.err
    assert "--source ." in done.err
    packed = terminal.type("submit", "-d", "--source", ".", "--command", "python train.py")
    assert "the command names" not in packed.err
    assert json.loads(terminal.type("show", "--json", packed.out.strip()).out)["snapshot"]


@pytest.mark.usefixtures("project")
def test_size_limit_error_names_large_files_and_how_to_exclude_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(limits.SIZE_VARIABLE, "20.9999")
    for words in (("submit", "-d", "train.py"), ("submit", "--dry-run", "train.py")):
        done = terminal.type(*words)
        assert done.code != 0
        assert "above the limit of 21 MiB" in done.err
        assert "data/big.bin" in done.err
        assert "add these lines to .rayjobsignore:\n  /data/" in done.err


@pytest.mark.long
def test_sweep_dry_run_shows_what_is_packed(project: Path, terminal: Terminal) -> None:
    (project / "sweep.yaml").write_text(
        "name: s\njob: {script: train.py}\nmetric: loss\ngoal: minimize\n"
        "sampling: {type: random, seed: 7, parameters: {--lr: {uniform: [0.1, 0.2]}}}\n"
        "limits: {total: 2, concurrent: 1}\n"
    )
    done = terminal.type("sweep", "create", "-f", "sweep.yaml", "--dry-run")
    assert "snapshot: 4 files" in done.err
    assert "keys.py" in done.err
    first = terminal.type("sweep", "create", "-f", "sweep.yaml", "-d")
    assert "keys.py" in first.err
    assert "keys.py" not in terminal.type("sweep", "create", "-f", "sweep.yaml", "-d").err


def test_small_files_are_not_listed_as_the_largest(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0" * 10_000)
    (tmp_path / "b.py").write_text("1")
    assert Summary.of(survey(tmp_path)).size_line == "2 files, 9.77 KiB; largest: a.bin (9.77 KiB)"
