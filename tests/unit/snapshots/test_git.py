"""What a submit records of the source directory's git repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rayjobs.cli.main import run
from rayjobs.snapshots import git
from rayjobs.snapshots.git import GitFacts, GitLook, filtered, without_credentials
from rayjobs.spec.model import JobSpec
from rayjobs.store.requests import JobFilter
from rayjobs.submit.submitting import submit
from rayjobs.workspace.folder import open_workspace

PATIENT_S = 30.0
KEY = "AKIA" + "QWERTYUIOPASDFGH"


def call(folder: Path, *words: str) -> str:
    """Run git with a neutral identity."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with one commit and a remote whose URL has a password."""
    folder = tmp_path / "source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "pkg" / "data.py").write_text("x = 1\n")
    call(folder, "init", "-q")
    call(folder, "add", "-A")
    call(folder, "commit", "-qm", "first")
    call(folder, "remote", "add", "origin", "https://ada:hunter22@example.com/team/x.git")
    return folder


def look(folder: Path, packed: frozenset[str] | None = None) -> GitFacts:
    with GitLook(folder) as looking:
        known = None if packed is None else lambda: packed
        return looking.result(known, patience_s=PATIENT_S)


def test_a_clean_repository(source: Path) -> None:
    found = look(source)
    assert found == GitFacts(
        commit=call(source, "rev-parse", "HEAD"),
        branch="main",
        remote="https://example.com/team/x.git",
        dirty=False,
        untracked=0,
    )


def test_changed_and_untracked_files(source: Path) -> None:
    (source / "train.py").write_text("print('bye')\n")
    (source / "new.py").write_text("")
    (source / "many").mkdir()
    (source / "many" / "one.py").write_text("")
    found = look(source)
    assert found.dirty is True
    assert "-print('hello')\n+print('bye')\n" in found.diff
    assert (found.untracked, found.untracked_names) == (2, ("many/", "new.py"))


def test_staged_changes_count(source: Path) -> None:
    (source / "train.py").write_text("print('bye')\n")
    call(source, "add", "train.py")
    assert "+print('bye')" in look(source).diff


def test_only_the_source_directory_counts(source: Path) -> None:
    (source / "train.py").write_text("print('bye')\n")
    found = look(source / "pkg")
    assert found.commit
    assert found.dirty is False
    (source / "pkg" / "data.py").write_text("x = 2\n")
    assert "+++ b/data.py" in look(source / "pkg").diff


@pytest.mark.long
def test_a_diff_is_bounded(source: Path) -> None:
    (source / "train.py").write_text("y = 1\n" * git.DIFF_BYTES)
    found = look(source)
    assert found.diff_truncated
    assert 0 < len(found.diff) <= git.DIFF_BYTES
    assert found.untracked == 0


def test_secrets_do_not_leave_with_the_diff(source: Path) -> None:
    (source / ".env").write_text("A=1\n")
    call(source, "add", "-f", ".env")
    call(source, "commit", "-qm", "env")
    (source / ".env").write_text("A=canary-1\n")
    (source / "pkg" / "data.py").write_text(f'key = "{KEY}"\n')
    (source / "train.py").write_text(
        'db_password = "canary-2"\nname = "shown"\nurl = "https://u:canary-3@h/x"\n'
    )
    found = look(source)
    assert "canary" not in found.diff
    assert KEY not in found.diff
    assert 'db_password = "…"' in found.diff
    assert 'name = "shown"' in found.diff
    assert [one.partition(" ")[0] for one in found.diff_left_out] == [".env", "pkg/data.py"]


@pytest.mark.parametrize(
    ("name", "line", "shown"),
    [
        ("a.yaml", "password: hunter3horse # mine", "password: …"),
        ("a.ini", "db_password = hunter3 horse", "db_password = …"),
        ("Makefile", "export API_TOKEN=abcdefgh12345678", "export API_TOKEN=…"),
        ("run.sh", "train --lr 0.1 --api-key=abcdefgh", "train --lr 0.1 --api-key=…"),
        ("a.json", '"name": "n", "token": "it\'s", "x": 1', '"name": "n", "token": "…", "x": 1'),
        ("a.ipynb", r'"token = \"abcdefgh\"\n",', r'"token = \"…",'),
        ("a.py", 'token: str = "abcdefgh"', 'token: str = "…"'),
        ("a.py", 'environ["API_TOKEN"] = f"abcdefgh"', 'environ["API_TOKEN"] = f"…"'),
        ("a.py", "password = 'abcd\"efgh', 'x'", "password = '…', 'x'"),
        ("a.py", "token = parts[0]  # the first", "token = parts[0]  # the first"),
        ("a.yaml", "max_tokens: 512", "max_tokens: 512"),
        ("a.yaml", "use_token: true", "use_token: true"),
        ("a.yaml", "learning_rate: 0.1", "learning_rate: 0.1"),
        ("a.yaml", "password: 12345678", "password: …"),
    ],
)
def test_values_of_secrets_are_masked_quoted_or_not(name: str, line: str, shown: str) -> None:
    """Off switch: mask only quoted values."""
    head = f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n"
    part = f"{head}@@ -1,2 +1,2 @@ {{0}}\n-{{0}}\n+{{0}}\n {{0}}\n"
    assert filtered(part.replace("{0}", line), None) == (part.replace("{0}", shown), ())


def test_diff_excludes_what_the_snapshot_excludes(source: Path) -> None:
    (source / "train.py").write_text("1\n")
    (source / "pkg" / "data.py").write_text("2\n")
    found = look(source, frozenset({"train.py"}))
    assert "train.py" in found.diff
    assert "data.py" not in found.diff
    assert found.diff_left_out == ("pkg/data.py (not in the snapshot)",)


def test_odd_names_in_a_diff_are_understood(source: Path) -> None:
    for name in ("with space.py", "ü.py", 'quo"te.py'):
        (source / name).write_text("1\n")
    call(source, "add", "-A")
    call(source, "commit", "-qm", "odd")
    for name in ("with space.py", "ü.py", 'quo"te.py'):
        (source / name).write_text("2\n")
    found = look(source, frozenset({"with space.py", "ü.py", 'quo"te.py'}))
    assert found.diff_left_out == ()
    assert found.diff.count("diff --git") == 3


def test_removed_file_is_named_without_its_content(source: Path) -> None:
    (source / "pkg" / "data.py").unlink()
    found = look(source, frozenset({"train.py"}))
    assert (found.diff, found.dirty) == ("", True)
    assert found.diff_left_out == ("pkg/data.py (removed; the commit has it)",)


@pytest.mark.long
def test_a_detached_head_a_worktree_and_packed_references(source: Path, tmp_path: Path) -> None:
    commit = call(source, "rev-parse", "HEAD")
    call(source, "pack-refs", "--all")
    assert (look(source).commit, look(source).branch) == (commit, "main")
    call(source, "worktree", "add", "-q", "-b", "topic/x", str(tmp_path / "tree"))
    found = look(tmp_path / "tree")
    assert (found.commit, found.branch) == (commit, "topic/x")
    assert found.remote == "https://example.com/team/x.git"
    call(source, "symbolic-ref", "refs/heads/alias", "refs/heads/main")
    call(source, "symbolic-ref", "HEAD", "refs/heads/alias")
    assert (look(source).commit, look(source).branch) == (commit, "alias")
    call(source, "checkout", "-q", "--detach")
    assert (look(source).commit, look(source).branch) == (commit, "")


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://u:p@h/x.git", "https://h/x.git"),
        ("https://token@h:8443/x.git?a=b", "https://h:8443/x.git"),
        ("git@github.com:team/x.git", "git@github.com:team/x.git"),
        ("ssh://git@h/x.git", "ssh://git@h/x.git"),
        ("ssh://u:p@h/x.git", "ssh://h/x.git"),
        ("ext::https://u:p@h/x", "ext::https://h/x"),
        ("/srv/x.git", "/srv/x.git"),
        ("", ""),
    ],
)
def test_credentials_are_taken_out_of_a_remote(url: str, kept: str) -> None:
    assert without_credentials(url) == kept


def test_a_diff_that_is_cut_off_anywhere_is_read() -> None:
    whole = "diff --git a/a.py b/a.py\nindex 1..2\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-1\n+2\n"
    for end in range(len(whole)):
        filtered(whole[:end], frozenset({"a.py"}))


def test_properties_have_azures_names(source: Path, tmp_path: Path) -> None:
    (source / "train.py").write_text("print('bye')\n")
    with open_workspace(tmp_path / "ws") as workspace:
        spec = JobSpec(name="t", script="train.py", source_directory=str(source))
        job = submit(workspace, spec, wake=False).job
        commit = call(source, "rev-parse", "HEAD")
        assert job.properties["azureml.git.commit"] == commit
        assert job.properties["mlflow.source.git.commit"] == commit
        assert job.properties["azureml.git.branch"] == "main"
        assert job.properties["azureml.git.repository_uri"] == "https://example.com/team/x.git"
        assert job.properties["mlflow.source.git.repoURL"] == "https://example.com/team/x.git"


@pytest.mark.long
def test_git_state_is_kept_for_jobs_arrays_and_sweeps_and_shown(
    source: Path,
    own_home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rayjobs.tuning.spec import parse_sweep
    from rayjobs.tuning.submitter import submit_sweep

    monkeypatch.setattr(git, "PATIENCE_S", PATIENT_S)
    monkeypatch.setattr(git, "PATIENCE_CHANGED_S", PATIENT_S)
    (source / "train.py").write_text("print('bye')\n")
    with open_workspace(own_home / "w") as workspace:
        plain = {"name": "t", "script": "train.py", "source_directory": str(source)}
        job = submit(workspace, JobSpec(**plain), wake=False).job
        assert job.properties["azureml.git.dirty"] == "True"
        array = submit(workspace, JobSpec(**plain, array="0-1"), wake=False).job
        assert [
            git.kept(one.properties) for one in workspace.store.jobs(JobFilter(parent=array.id))
        ] == [git.kept(job.properties)] * 2
        swept = submit_sweep(
            workspace,
            parse_sweep(
                {
                    "name": "s",
                    "job": plain,
                    "metric": "loss",
                    "goal": "minimize",
                    "sampling": {"type": "random", "parameters": {"--x": {"uniform": [0, 1]}}},
                    "limits": {"total": 1, "concurrent": 1},
                }
            ),
            wake=False,
        ).sweep.job
        assert git.kept(swept.properties) == git.kept(job.properties)
    capsys.readouterr()
    run(["show", job.id])
    assert "with uncommitted changes" in capsys.readouterr().out
    run(["show", "--json", job.id])
    shown = json.loads(capsys.readouterr().out)["git"]
    assert (shown["dirty"], shown["branch"]) == (True, "main")
    run(["show", "--diff", job.id])
    assert "+print('bye')" in capsys.readouterr().out


def test_submit_from_a_git_hook_reads_its_own_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", os.devnull)
    assert look(source).dirty is False


@pytest.mark.long
def test_folder_outside_a_repository_is_inspected_once_it_is_in_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "PATIENCE_S", PATIENT_S)
    spec = JobSpec(name="t", script="train.py", source_directory=str(source))
    (source / ".git").rename(tmp_path / "aside")
    with open_workspace(tmp_path / "ws") as workspace:
        for _ in range(2):
            found = git.of_properties(submit(workspace, spec, wake=False).job.properties) or {}
            assert found["why"] == "not in a git repository"
        (tmp_path / "aside").rename(source / ".git")
        found = git.of_properties(submit(workspace, spec, wake=False).job.properties) or {}
    assert (found["commit"], found["dirty"]) == (call(source, "rev-parse", "HEAD"), False)


def test_unchanged_source_is_not_inspected_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "PATIENCE_S", PATIENT_S)
    monkeypatch.setattr(git, "PATIENCE_CHANGED_S", PATIENT_S)
    starts = []
    real = GitLook._start

    def counted(self: GitLook, folder: Path) -> None:
        starts.append(folder)
        real(self, folder)

    monkeypatch.setattr(GitLook, "_start", counted)
    (source / "train.py").write_text("print('bye')\n")
    spec = JobSpec(name="t", script="train.py", source_directory=str(source))
    with open_workspace(tmp_path / "ws") as workspace:
        first = submit(workspace, spec, wake=False).job.properties
        assert git.of_properties(first) == git.of_properties(
            submit(workspace, spec, wake=False).job.properties
        )
        assert len(starts) == 1
        (source / "pkg" / "data.py").write_text("x = 2\n")
        changed = git.of_properties(submit(workspace, spec, wake=False).job.properties) or {}
        assert len(starts) == 2
        assert changed["diff"] != (git.of_properties(first) or {})["diff"]
        call(source, "commit", "-qam", "second")
        clean = git.of_properties(submit(workspace, spec, wake=False).job.properties) or {}
        assert len(starts) == 3
        assert (clean["commit"], clean["dirty"]) == (call(source, "rev-parse", "HEAD"), False)
        for kept in (tmp_path / "ws" / "cache").glob("git-*.json"):
            kept.write_text("{")
        submit(workspace, spec, wake=False)
        assert len(starts) == 4
        monkeypatch.setattr(git, "_FORM", 0)  # cached under other masking rules
        submit(workspace, spec, wake=False)
        assert len(starts) == 5
