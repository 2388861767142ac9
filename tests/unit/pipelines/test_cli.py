"""`rayjobs pipeline` as a user types it, on pipelines that are simulated in the store."""

from __future__ import annotations

import fcntl
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rayjobs.cli.following import OUTLOOK_EVERY_S, Stages
from rayjobs.cli.main import run
from rayjobs.core.paths import TargetPaths, home
from rayjobs.pipelines.drawing import cells_of, draw
from rayjobs.pipelines.plot import HEIGHT, WIDTH, layout_of, levels_of, places_of, ways_of
from rayjobs.pipelines.views import critical_path, views_of
from rayjobs.spec.text import write_yaml
from rayjobs.target import timekeeper
from tests.unit.pipelines.played import Played, steps


class Typed:
    """Types commands in the workspace of a simulated pipeline."""

    def __init__(self, played: Played, capsys: pytest.CaptureFixture[str]) -> None:
        self.played = played
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> tuple[str, str]:
        place = ["--workspace", str(self.played.workspace.path)]
        assert run(["pipeline", *words, *place]) == code
        return self._capsys.readouterr()

    def rayjobs(self, *words: str, code: int = 0) -> tuple[str, str]:
        """Type another command."""
        assert run([*words, "--workspace", str(self.played.workspace.path)]) == code
        return self._capsys.readouterr()

    def logs(self, *words: str) -> tuple[str, str]:
        """Type ``rayjobs logs``."""
        assert run(["logs", *words, "--workspace", str(self.played.workspace.path)]) == 0
        return self._capsys.readouterr()

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json")[0])

    def file(self, **changes: Any) -> str:
        """Write a pipeline file next to the scripts; return its path."""
        data = {"name": "digits", "parameters": {"epochs": 3}, "steps": steps(), **changes}
        path: Path = self.played.source / "pipeline.yaml"
        path.write_text(write_yaml(data))
        return str(path)


@pytest.fixture
def typed(played: Played, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(played, capsys)


@pytest.mark.long
def test_dry_run_shows_the_graph_and_reused_steps(typed: Typed) -> None:
    typed.played.run()
    (typed.played.source / ".amlignore").write_text("pipeline.yaml\n")
    typed.played.run()
    before = len(typed.played.store.jobs())
    out, err = typed("run", "-f", typed.file(), "-p", "epochs=4", "--dry-run")
    lines = [line.split() for line in out.splitlines()]
    prep, train = (typed.played.store.earlier_step("digits", name) for name in ("prep", "train"))
    assert prep is not None and train is not None
    assert lines[1] == ["↺", "prep", "reused", "from", prep.job]
    assert lines[2] == ["○", "train", "runs", "differs", "from", train.job, "in", "arguments"]
    assert "3 steps: 1 reused, 2 would run. Nothing was submitted" in err
    assert len(typed.played.store.jobs()) == before


def test_show_draws_states_and_the_critical_path(typed: Typed) -> None:
    first = typed.played.submit()
    typed.played.complete_all(first.id, fails="train")
    out, _ = typed("show", first.id)
    assert "step 'train' failed: rank 0 exited with 1" in out
    rows = [line.split()[:3] for line in out.splitlines() if line and line[0] in "✔✘–"]
    assert rows == [
        ["✔", "prep", "Completed"],
        ["✘", "train", "Failed"],
        ["–", "test", "Canceled"],
    ]
    shown = typed.json("show", first.id)
    assert [one["status"] for one in shown["steps"]] == ["Completed", "Failed", "Canceled"]
    assert typed.json("ls")[0]["steps"] == {"Completed": 1, "Failed": 1, "Canceled": 1}
    views = views_of(typed.played.workspace, typed.played.store.pipeline(first.id))
    assert critical_path(views)[:2] == ["prep", "train"]


@pytest.mark.long
def test_show_draws_the_graph_into_a_file(typed: Typed, tmp_path: Path) -> None:
    first = typed.played.submit()
    typed.played.complete_all(first.id, fails="train")
    file = tmp_path / "new" / "graph.svg"
    assert f"wrote the plot to {file}" in typed("show", first.id, "--plot", str(file))[1]
    picture = file.read_text()
    for text in ("prep", "train", "test", "Completed", "Failed", "Canceled", "the critical path"):
        assert f"<!-- {text}" in picture or text in picture, text
    image = tmp_path / "graph.png"
    typed("show", first.id, "--plot", str(image))
    assert image.read_bytes().startswith(b"\x89PNG")
    assert "must end with" in typed("show", first.id, "--plot", "graph.txt", code=2)[1]


def test_columns_of_a_graph_follow_dependencies() -> None:
    before: dict[str, list[str]] = {"a": [], "b": [], "c": ["a"], "d": ["a", "c"], "e": ["b"]}
    assert levels_of(before) == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 1}
    places = places_of(before)
    assert len(set(places.values())) == len(places), "two steps have the same place"
    assert places["c"][1] < places["e"][1], "a step is far from the steps that it reads"


def test_pictures_of_large_graphs_fit_a_screen() -> None:
    chain = {f"s{n:02d}": [f"s{n - 1:02d}"] if n else [] for n in range(20)}
    middle = [f"m{n:02d}" for n in range(98)]
    wide = {"first": [], **{one: ["first"] for one in middle}, "last": middle}
    for before in (chain, wide):
        layout = layout_of(before)
        assert 0.3 < layout.width / layout.height < 3.5
        assert layout.width < 30
        assert len(set(layout.centres.values())) == len(before), "two steps have the same place"
        for name, needed in before.items():
            for one in needed:
                is_lower = layout.bands[one] < layout.bands[name]
                assert is_lower or layout.centres[one][0] < layout.centres[name][0]


def test_no_line_of_a_picture_passes_through_a_box() -> None:
    names = [f"s{n:02d}" for n in range(14)]
    before = {name: [*names[max(0, n - 5) : n : 2]] for n, name in enumerate(names)}
    fan: dict[str, list[str]] = {"a": [], **{f"b{n}": ["a"] for n in range(4)}, "c": ["b0"]}
    fan |= {"d": ["a", "b1", "c"], "e": ["a", "b3", "d"]}
    for graph in (before, fan):
        layout = layout_of(graph)
        ways = ways_of(layout, graph)
        assert ways
        for (one, name), way in ways.items():
            assert way[0][0] < way[-1][0]
            for start, end in pairwise(way):
                for step in range(101):
                    x, y = (a + (b - a) * step / 100 for a, b in zip(start, end, strict=True))
                    inside = [
                        box
                        for box, (at_x, at_y) in layout.centres.items()
                        if abs(x - at_x) < WIDTH / 2 - 0.01 and abs(y - at_y) < HEIGHT / 2 - 0.01
                    ]
                    assert not inside, (one, name, inside)


def test_a_wide_graph_is_a_list_in_the_terminal() -> None:
    middle = [f"m{n:02d}" for n in range(98)]
    wide = {"first": [], **{one: ["first"] for one in middle}, "last": middle}
    cells = [cell for cell, _ in cells_of(wide, dict.fromkeys(wide, "Completed"))]
    assert cells[:2] == ["✔ first", "  ✔ m00  ← first"]
    assert cells[-1] == "    ✔ last  ← m00, m01 and 96 more"
    few = {"a": [], "b": ["a"]}
    assert cells_of(few, {})[0][0] == "●  a"


def test_two_values_for_one_parameter_are_refused(typed: Typed) -> None:
    two = ("-p", "epochs=4", "-p", "epochs=5")
    typed("publish", "-f", typed.file())
    for words in (
        ("run", "-f", typed.file(), "--dry-run"),
        ("schedule", "create", "digits", "--every", "1 day"),
    ):
        _, err = typed(*words, *two, code=2)
        assert "-p 'epochs' is given as '4' and as '5'; give one" in err
    typed("run", "-f", typed.file(), "--dry-run", "-p", "epochs=4", "-p", "epochs=4")
    _, err = typed("run", "-f", typed.file(), "-p", "epochs", code=2)
    assert "-p 'epochs': write it as NAME=VALUE, e.g. epochs=5" in err


@pytest.mark.long
def test_why_rerun_names_the_differences(typed: Typed) -> None:
    typed.played.run()
    run_id = typed.played.run(values={"epochs": 4}).id
    out, _ = typed("why-rerun", run_id, "train")
    assert "differs from" in out
    assert 'was ["--epochs", "3"]' in out and 'is  ["--epochs", "4"]' in out
    (typed.played.source / "train.py").write_text("print('changed')")
    run_id = typed.played.run(values={"epochs": 4}).id
    assert "train.py: changed" in typed("why-rerun", run_id, "prep")[0]
    _, err = typed("why-rerun", run_id, "trian", code=3)
    assert "has no step 'trian'; it has: prep, train, test" in err


def test_outputs_of_steps_are_shown_and_fetched(typed: Typed, tmp_path: Path) -> None:
    first = typed.played.run()
    made_by = {one.name: one.job_id for one in first.steps}
    again = typed.played.run(values={"epochs": 4})
    prep, train = (one.job_id for one in again.steps[:2])
    place = f"workspaceblobstore/azureml/{made_by['prep']}/clean"
    assert f"Output clean  {place}: 1 file, 15 B" in typed.rayjobs("show", prep)[0]
    assert "data.txt" in typed.rayjobs("data", "ls", f"output:{train}/model")[0]
    assert "graph and steps: rayjobs pipeline show" in typed.rayjobs("show", first.id)[1]
    for index, name in enumerate((f"output:{prep}/clean", "output:digits/prep", f"output:{prep}")):
        target = tmp_path / str(index)
        typed.rayjobs("data", "get", name, str(target))
        assert (target / "data.txt").read_text() == "prep made clean"
    for name, text in (
        ("output:digits/clean", "is a pipeline run: name a step's output"),
        (f"output:{train}/modle", "has not stored output 'modle'; it has stored: model"),
    ):
        assert text in typed.rayjobs("data", "get", name, str(tmp_path / "x"), code=3)[1]
    waiting = typed.played.submit(regenerate=True).steps[0].job_id
    text = f"{waiting}/clean (not stored yet)"
    assert text in typed.rayjobs("show", waiting)[0]
    assert "it has stored none" in typed.rayjobs("data", "ls", f"output:{waiting}", code=3)[1]


def test_all_problems_of_a_file_are_reported(typed: Typed) -> None:
    bad = typed.file(steps=steps(prep={"after": ["test"]}, test={"inputs": {"x": "step:no/x"}}))
    _, err = typed("run", "-f", bad, "--dry-run", code=2)
    assert "pipeline.yaml has" in err and "no step produces it" in err
    _, err = typed("run", bad, code=2)
    assert f"Name a pipeline file with -f ({bad})" in err
    assert "`rayjobs pipeline ls --all` lists the pipelines" in typed("show", "no", code=3)[1]
    Path(bad).write_text("")
    assert "lines, such as `steps:" in typed("run", "-f", bad, code=2)[1]
    _, err = typed("run", "--dry-run", code=2)
    assert "give a pipeline: -f FILE, or --published PIPELINE" in err


def test_a_published_pipeline_runs_without_its_file(typed: Typed) -> None:
    file = typed.file()
    published = typed("publish", "-f", file, "--label", "1.0")[0].strip()
    (typed.played.source / "train.py").unlink()
    Path(file).unlink()
    out, _ = typed("run", "--published", "digits", "--dry-run")
    assert "train" in out
    (listed,) = typed.json("ls", "--published")
    assert (listed["id"], listed["version"]) == (published, "1.0")


@pytest.mark.long
def test_schedule_is_created_shown_toggled_and_removed(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timekeeper, "ensure", lambda *, home: None)
    typed("publish", "-f", typed.file())
    words = ("--every", "2 weeks", "--on", "monday", "--at", "03:00", "-p", "epochs=5")
    out, err = typed("schedule", "create", "digits", "--name", "fortnight", *words)
    assert "every 2 weeks on Monday at 03:00" in err
    shown = typed.json("schedule", "show", out.strip())
    assert (shown["name"], shown["parameters"]) == ("fortnight", {"epochs": "5"})
    typed("schedule", "create", "digits", "--when-changed", "workspaceblobstore/in", "--poll", "1")
    listed, _ = typed("schedule", "ls")
    assert "when workspaceblobstore/in changes (every 1 min)" in listed and "fortnight" in listed
    typed("schedule", "disable", "fortnight")
    assert len(typed.json("schedule", "ls")) == 1
    assert "disabled" in typed("schedule", "ls", "--all")[0]
    typed("schedule", "enable", "fortnight")
    assert "every 2 weeks" in typed("schedule", "show", "fortnight")[0]
    typed("schedule", "rm", "fortnight")
    assert "there is no schedule" in typed("schedule", "show", "fortnight", code=3)[1]
    assert "say when" in typed("schedule", "create", "digits", code=2)[1]
    assert "'yearly'" in typed("schedule", "create", "digits", "--every", "yearly", code=2)[1]


def test_canceled_run_is_reported(typed: Typed) -> None:
    run_id = typed.played.submit().id
    assert typed("cancel", run_id)[0].strip() == f"{run_id}: Canceled"
    assert "has already ended" in typed("cancel", run_id)[0]
    _, err = typed("show", typed.played.store.steps(run_id)[0].job, code=3)
    assert "is a job, not a pipeline" in err


def test_run_whose_target_is_starting_is_queued(typed: Typed) -> None:
    run_id = typed.played.submit().id
    lock = TargetPaths.of("local", under=home()).keeper_lock
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        explained = typed.rayjobs("why", run_id)[0]
        assert f"{run_id} is a pipeline; this explains prep, its next step" in explained
        assert "is Queued: target 'local' is being started" in explained
        shown = typed("show", run_id)[0]
        assert "State       Queued" in shown and "is being started" in shown
        (listed,) = [
            one for one in json.loads(typed.rayjobs("ls", "--json")[0]) if not one["parent"]
        ]
        assert (listed["kind"], listed["shown_state"]) == ("pipeline", "Queued")
        messages: list[str] = []
        progress = Stages(typed.played.workspace, run_id, messages.append)
        progress._outlook_s = time.monotonic() - OUTLOOK_EVERY_S
        progress.look()
        assert messages[0] == "Queued" and "is being started" in messages[1], messages
        assert not any("NotResponding" in one or "Running" in one for one in messages)


def test_name_selects_its_only_unfinished_run(typed: Typed) -> None:
    ended, unfinished = typed.played.run().id, typed.played.submit(regenerate=True).id
    assert typed("cancel", "digits")[0].strip() == f"{unfinished}: Canceled"
    _, err = typed("cancel", "digits", code=2)
    assert "'digits' names 2 pipelines" in err and ended in err


def test_lanes_join_and_split() -> None:
    before: dict[str, tuple[str, ...]] = {
        "prep": (),
        "a": ("prep",),
        "b": ("prep",),
        "join": ("a", "b"),
    }
    assert draw(before, {"prep": "Completed"}) == [
        ("✔", "prep"),
        ("├─●", "a"),
        ("● │", "b"),
        ("╰─┴─●", "join"),
    ]


@pytest.mark.long
def test_logs_of_a_pipeline_name_the_steps(typed: Typed) -> None:
    two = {"distribution": {"nodes": 1, "processes_per_node": 2, "backend": "gloo"}}
    spec = typed.played.spec(steps=steps(train=two))
    first = typed.played.run(spec)
    out, _ = typed.logs(first.id)
    assert out.splitlines() == [
        "[prep] prep.py says 0",
        "[train rank 0] train.py says 0",
        "[train rank 1] train.py says 1",
        "[test] test.py says 0",
    ]
    out, _ = typed.logs(first.id, "--json")
    named = [(one["step"], one["ranks"]) for one in map(json.loads, out.splitlines())]
    assert named == [("prep", [0]), ("train", [0]), ("train", [1]), ("test", [0])]
    assert typed.logs(first.id, "--rank", "1")[0] == "[train] train.py says 1\n"


@pytest.mark.long
def test_logs_of_reused_steps_are_those_of_the_original(typed: Typed) -> None:
    first = typed.played.run()
    again = typed.played.run(values={"epochs": 4})
    prep = first.steps[0].job_id
    out, err = typed.logs(again.id)
    assert out.splitlines() == [
        "[prep] prep.py says 0",
        "[train] train.py says 0",
        "[test] test.py says 0",
    ]
    assert f"prep: reused from {prep}" in err
    out, err = typed.logs(again.steps[0].job_id)
    assert out == "prep.py says 0\n"
    assert f"step 'prep' was not run: these are the logs of {prep}" in err
    out, err = typed.logs("-f", again.id)
    assert out.splitlines() == ["[train] train.py says 0", "[test] test.py says 0"]
    assert f"prep: reused from {prep}" in err
