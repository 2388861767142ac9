"""Leftovers of ended attempts after the death of a target or an agent are cleaned up later."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rayjobs.core.paths import AttemptPaths
from rayjobs.engine import tidying
from rayjobs.injob.identity import own_identity
from rayjobs.node import cleaning
from rayjobs.node.cleaning import Cleaning
from rayjobs.node.scratch import Scratch
from rayjobs.protocol.calls import (
    CleanedFolders,
    CleanFolders,
    Nothing,
    Uncleaned,
    UncleanedFolders,
)
from tests.fakes.world import World, play
from tests.support.attempts import write_plan


@dataclass
class Node:
    """A node's scratch with attempts in it."""

    root: Path
    released: list[Path] = field(default_factory=list)

    @property
    def cleaning(self) -> Cleaning:
        return Cleaning(self.root / "attempts", Scratch(self.root), self.released.append)

    def attempt(self, name: str, *, launched: bool = True, stored: bool = True) -> AttemptPaths:
        paths = AttemptPaths(self.root / "attempts" / name)
        paths.work.mkdir(parents=True)
        (paths.work / "train.py").write_text("")
        if launched:
            socket = str(paths.root / "h.sock")
            write_plan(paths.root, marker=f"rj-none-{name}", socket=socket)
        if stored:
            paths.stored.touch()
        return paths


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "n")


def _names(node: Node) -> list[tuple[str, int]]:
    return [(one.job, one.attempt) for one in node.cleaning.uncleaned()]


def test_only_stored_or_unstarted_attempts_are_cleaned_up(node: Node) -> None:
    node.attempt("done_1/a1")
    node.attempt("done_2/a2-n1")
    node.attempt("prepared_3/a1", launched=False, stored=False)
    node.attempt("refused_4/a1", stored=False)
    running = node.attempt("running_5/a1")
    running.host.write_text(json.dumps({**own_identity().to_json(), "socket": "s"}))
    assert _names(node) == [("done_1", 1), ("done_2", 2), ("prepared_3", 1)]


def test_named_attempt_is_removed_with_its_data_and_job_folder(node: Node) -> None:
    one, other = node.attempt("done_1/a1"), node.attempt("done_2/a1")
    assert node.cleaning.clean([str(one.root), str(node.root)]) == 1
    assert not one.root.parent.exists()
    assert node.released == [one.root]
    assert other.root.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"marker": "m", "socket": "s"}'])
def test_attempt_whose_plan_is_damaged_stays(node: Node, text: str) -> None:
    """Its processes and its socket are not known."""
    one = node.attempt("done_1/a1")
    one.plan.write_text(text)
    assert node.cleaning.clean([str(one.root)]) == 0
    assert one.work.exists()


def test_attempt_of_another_version_is_removed_if_its_plan_can_be_read(node: Node) -> None:
    one, later = node.attempt("done_1/a1"), node.attempt("done_2/a1")
    plan = json.loads(one.plan.read_text())
    # Version 0.1.0 wrote None for what was not there.
    old = {name: plan[name] for name in plan if name != "extras"} | {"mpi": None, "horovod": None}
    one.plan.write_text(json.dumps(old))
    later.plan.write_text(json.dumps({**plan, "colour": "red", "version": 2}))
    assert node.cleaning.clean([str(one.root), str(later.root)]) == 1
    assert not one.root.exists() and later.root.exists()


def test_sockets_of_killed_hosts_are_removed(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind(str(short_path / "host-1.sock"))
        alive.bind(str(short_path / "host-2.sock"))
        alive.listen()
        dead.close()
        assert cleaning.remove_dead_sockets(short_path) == []  # it may start listening soon
        for name in ("host-1.sock", "host-2.sock"):
            os.utime(short_path / name, (0, 0))
        assert cleaning.remove_dead_sockets(short_path) == [short_path / "host-1.sock"]


def test_new_target_cleans_attempts_ended_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(here: World) -> None:
        ended, running = here.submit(), here.submit()
        await here.launched(ended)
        await here.launched(running)
        here.agent.end(ended.id, 1, exit_code=0)
        await here.until(lambda: here.store.job(ended.id).state.is_final, "the first has ended")
        jobs = {"a": (ended.id, 1), "b": (ended.id, 2), "c": (running.id, 1), "d": ("none", 1)}
        cleaned: list[str] = []

        async def uncleaned(_: Nothing) -> UncleanedFolders:
            return UncleanedFolders(tuple(Uncleaned(job, n, at) for at, (job, n) in jobs.items()))

        async def sweep(request: CleanFolders) -> CleanedFolders:
            cleaned.extend(request.roots)
            return CleanedFolders(len(request.roots))

        monkeypatch.setattr(here.agent, "uncleaned", uncleaned)
        monkeypatch.setattr(here.agent, "sweep", sweep)
        here.engine.tidying.cleaned_s = None  # as in a target that has just started
        await here.until(lambda: here.engine.tidying.cleaned_s is not None, "the tidying has run")
        await here.until(lambda: cleaned, "it has cleaned")
        assert cleaned == ["a"]

    monkeypatch.setattr("rayjobs.engine.engine.TIDY_S", 0.05)
    monkeypatch.setattr(tidying, "CLEAN_EVERY_S", 600.0)
    play(scene, tmp_path)
