"""plan.json as the host reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayjobs.injob.plan import LaunchPlan, PlanError, expand, load, parse
from rayjobs.injob.record_files import UnusableFileError
from tests.support.attempts import write_plan


def values(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "job": "j",
        "attempt": 2,
        "marker": "rj-j-a2",
        "root": "/r",
        "socket": "/s/h.sock",
        "kind": "script",
        "argv": ["train.py"],
        "python": "/usr/bin/python3",
        "env": {"PATH": "/bin"},
        "ranks": [{"rank": 4, "local_rank": 0, "env": {"RANK": "4"}}],
        "injob_path": "/lib",
        **changes,
    }


def test_missing_plan_fields_get_defaults() -> None:
    plan = parse(values())
    assert (plan.grace_s, plan.max_duration_s, plan.node_count) == (10.0, None, 1)
    assert plan.log_of(4) == "/r/log/driver_4.log" and plan.script == "/r/work/train.py"


def test_rank_environment_is_complete_and_secrets_come_last() -> None:
    plan = parse(values(threads=3))
    env = plan.rank_env(plan.ranks[0], {"KEY": "s"})
    assert env == {
        "PATH": "/bin",
        "RANK": "4",
        "KEY": "s",
        "RAYJOBS_MARKER": "rj-j-a2",
        "PWD": "/r/work",
        "TMPDIR": "/r/tmp",
        "OMP_NUM_THREADS": "3",
    }


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("$RANK", "4"),
        ("${RANK}x", "4x"),
        ("a$RANK/$RANK", "a4/4"),
        ("$MISSING ${MISSING}", "$MISSING ${MISSING}"),
        ("100$ $(id) `id` $$", "100$ $(id) `id` $$"),
        ("${RANK", "${RANK"),
    ],
)
def test_names_are_expanded_without_a_shell(argument: str, expected: str) -> None:
    assert expand(argument, {"RANK": "4"}) == expected


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"version": 2}, "version"),
        ({"kind": "notebook"}, "notebook"),
        ({"argv": []}, "argv"),
        ({"kind": "command", "command": ""}, "command"),
        ({"ranks": []}, "ranks"),
        ({"marker": "two words"}, "marker"),
        ({"socket": "/s" * 80}, "socket"),
        ({"grace_s": "soon"}, "soon"),
        ({"env": None}, "incomplete"),
    ],
)
def test_wrong_plan_is_refused_with_the_problem(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(PlanError, match=word):
        parse(values(**changes))


def test_unreadable_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    for path in (tmp_path / "plan.json", tmp_path / "none.json"):
        with pytest.raises(PlanError, match=path.name):
            load(str(path))


def test_umask_is_parsed_like_chmod() -> None:
    assert parse(values()).umask == 0o022 and parse(values(umask=0o077)).umask == 0o077
    with pytest.raises(PlanError, match="umask is 512"):
        parse(values(umask=0o1000))


def test_plan_of_an_attempt_is_read_from_its_folder(tmp_path: Path) -> None:
    assert LaunchPlan.read(str(tmp_path)) is None
    write_plan(tmp_path, {"A": "b"}, marker="m")
    plan = LaunchPlan.read(str(tmp_path))
    assert plan is not None and (plan.marker, plan.env) == ("m", {"A": "b"})
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError):
        LaunchPlan.read(str(tmp_path))
    (tmp_path / "plan.json").unlink()
    (tmp_path / "plan.json").symlink_to("/dev/zero")
    with pytest.raises(UnusableFileError):
        LaunchPlan.read(str(tmp_path))
