"""`rayjobs sweep watch` on a real terminal: what its screen shows while a sweep runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayjobs.jobs.states import JobState
from tests.support.terminal import Terminal
from tests.unit.cli.fake_target import target
from tests.unit.tuning_driver.world import World

OPTIMISER = "a-rather-long-name-of-an-optimiser"


def script(parameters: Any) -> tuple[list[Any], JobState, str]:
    """Report growing shares of x; one trial crashes, and one runs for long."""
    x = float(parameters["--x"])
    if x == 0.05:
        return [x], JobState.FAILED, "accuracy"
    reports = 60 if x == 0.8 else 6
    return [x * min(1 + n, 6) / 6 for n in range(reports)], JobState.COMPLETED, "accuracy"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("RAYJOBS_WORKSPACE", str(tmp_path / "w"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("LINES", raising=False)  # it would overrule the terminal
    world = World(tmp_path, script)
    # A responding target: without one, the table marks running trials as not responding.
    with target({"ok": True, "waiting": {}, "nodes": [], "allocations": []}):
        yield world
    world.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    """Open terminals; the test ends their commands."""
    terminals: list[Terminal] = []

    def open_one(*arguments: str, **given: Any) -> Terminal:
        terminals.append(Terminal(*arguments, **given))
        return terminals[-1]

    yield open_one
    for terminal in terminals:
        terminal.kill()


def middle(world: World) -> tuple[str, Any]:
    """Return a sweep, and its driver, with trials that completed, failed, were stopped and run."""
    sweep = world.submit(
        sampling={
            "type": "grid",
            "parameters": {
                "--x": ["choice", [[0.9, 0.05, 0.1, 0.8]]],
                "--optimiser": ["choice", [[OPTIMISER]]],
            },
        },
        policy={"type": "bandit", "slack_factor": 0.5, "delay_evaluation": 3},
        limits={"total": 4, "concurrent": 2},
    )
    driver = world.driver(sweep)
    for _ in range(200):
        assert driver.turn() is None
        world.play()
        states = [str(trial.state) for trial in world.trials(sweep)]
        if states == ["Completed", "Failed", "Canceled", "Running"]:
            driver.turn()
            return sweep, driver
    raise AssertionError(world.trials(sweep))


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_live_table_shows_sweep_progress(
    world: World, opened: Callable[..., Terminal], columns: int
) -> None:
    sweep, driver = middle(world)
    terminal = opened("sweep", "watch", sweep, columns=columns)
    screen = terminal.until_screen(lambda text: "left" in text and "Running" in text)
    head, _, *table = screen.splitlines()
    whole = " ".join(screen.split())
    assert "3 of 4 trials ended (1 completed, 1 stopped, 1 failed)" in whole
    assert "1 running" in whole
    assert "best accuracy = 0.9 (trial 0)" in whole
    assert "about" in whole  # the remaining time
    assert head
    rows = {line.split()[0]: line for line in table if line[:6].strip("* ").strip().isdigit()}
    states = {"0*": "Completed", "1": "Failed", "2": "Stopped", "3": "Running"}
    assert set(rows) == set(states), screen
    assert all(state in rows[number] for number, state in states.items()), screen
    why = "0.05 < 0.45/(1+0.5)"
    assert f"{'at interval' if columns == 200 else 'interval'} 3: {why}" in rows["2"], screen
    assert "x=0.1" in rows["2"], screen
    if columns == 200:
        assert f"optimiser={OPTIMISER}" in rows["2"], screen
    assert terminal.screen.wrapped == 0, screen
    assert world.finish(driver) is JobState.COMPLETED
    assert terminal.close() == 0
    left = terminal.screen.text
    assert left.count("TRIAL") == 1, left  # drawn in place; one table remains
    assert "4 of 4 trials ended (2 completed, 1 stopped, 1 failed)" in " ".join(left.split())
    assert "Running" not in left


def test_ctrl_c_detaches_and_the_sweep_continues(
    world: World, opened: Callable[..., Terminal]
) -> None:
    sweep, driver = middle(world)
    terminal = opened("sweep", "watch", sweep)
    terminal.until_screen(lambda text: "Running" in text)
    terminal.press(b"\x03")
    assert terminal.close() == 130
    assert f"rayjobs sweep watch {sweep[-8:]}" in terminal.screen.text
    assert world.store.job(sweep).cancel_requested_at is None
    assert world.finish(driver) is JobState.COMPLETED
