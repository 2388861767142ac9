"""A target's limits: set, shown, refused, and read again only when they changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rayjobs.cli.main import main
from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.policy import Limits
from rayjobs.target.limits import LimitsFile, limits_path, load_limits, save_limits


def test_limits_are_the_defaults_until_they_are_set(tmp_path: Path) -> None:
    assert load_limits("local", home=tmp_path) == Limits()
    read = LimitsFile("local", home=tmp_path)
    assert read() == Limits()
    wanted = Limits(jobs=3, jobs_per_user=1, gpus_per_user=1.5, aging_s=60.0, backfill=False)
    save_limits("local", wanted, home=tmp_path)
    assert load_limits("local", home=tmp_path) == wanted
    assert read() == wanted
    limits_path("local", home=tmp_path).unlink()
    assert read() == Limits()


def test_limits_need_an_existing_target(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no target 'no'"):
        load_limits("no", home=tmp_path)
    with pytest.raises(NotFoundError, match="no target 'no'"):
        save_limits("no", Limits(jobs=1), home=tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "cannot be read"), ('{"jobs": 0}', "jobs is 0"), ('{"backfill": 1}', "backfill is 1")],
)
def test_damaged_limits_are_named_and_leave_those_in_force(
    tmp_path: Path, text: str, named: str
) -> None:
    read = LimitsFile("local", home=tmp_path)
    save_limits("local", Limits(jobs=3), home=tmp_path)
    assert read().jobs == 3
    limits_path("local", home=tmp_path).write_text(text)
    with pytest.raises(UsageError, match=named):
        load_limits("local", home=tmp_path)
    assert read().jobs == 3


def test_command_changes_only_the_given_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYJOBS_HOME", str(tmp_path))

    def run(*arguments: str) -> dict[str, object]:
        done = CliRunner().invoke(main, ["target", "limits", *arguments, "--json"])
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    assert run("--max-jobs", "4", "--aging", "12h")["aging_s"] == 43200
    limits = run("--max-jobs", "none", "--max-gpus-per-user", "2.5", "--no-backfill")
    assert limits == {
        "target": "local",
        "jobs": None,
        "jobs_per_user": None,
        "gpus_per_user": 2.5,
        "aging_s": 43200,
        "backfill": False,
        "preemption": True,
    }
    wrong = CliRunner().invoke(main, ["target", "limits", "--max-jobs", "1.5"])
    assert wrong.exit_code == 2
    assert "none" in wrong.stderr
