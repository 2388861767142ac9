"""Probes of a machine: an answer is kept, a failed probe is repeated."""

from __future__ import annotations

import subprocess
import types
from pathlib import Path

import pytest

from rayjobs.injob import namespace
from rayjobs.node import probe
from rayjobs.node.containers import Capability, NodeContainers
from rayjobs.node.probe import ProbeError, ProbeResult
from rayjobs.node.workspaces import Workspaces
from rayjobs.snapshots.node import NodeSnapshots


def program(folder: Path, text: str) -> types.ModuleType:
    (folder / "program.py").write_text(text)
    made = types.ModuleType("program")
    made.__file__ = str(folder / "program.py")
    return made


def test_probe_returns_what_its_program_prints(tmp_path: Path) -> None:
    printed = program(tmp_path, """print('{"works": false, "why": "no"}')""")
    answer = probe.run(printed, namespace.NamespaceProbe)
    assert (answer.works, answer.why) == (False, "no")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import time; time.sleep(60)", "did not end within 1s"),
        ("print('a warning')", "the trial failed: JSONDecodeError"),
        ("raise SystemExit(1)", "the trial failed: JSONDecodeError"),
    ],
)
def test_probe_without_an_answer_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 1.0)
    with pytest.raises(ProbeError, match=words):
        probe.run(program(tmp_path, text), namespace.NamespaceProbe)


def test_answer_is_kept_and_a_failed_probe_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[str | Exception] = [ProbeError("slow"), ProbeError("slower"), "works"]

    def attempt() -> str:
        found = outcomes.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    result = ProbeResult(attempt, failed=lambda why: f"unknown: {why}")
    assert result.get() == "unknown: slow"
    assert result.get() == "unknown: slow"  # not repeated at once: it may block for a minute
    monkeypatch.setattr(probe, "AGAIN_S", 0.0)
    result._again_s = 0.0
    assert result.get() == "unknown: slower"
    assert result.get() == "works"
    assert result.get() == "works"


def test_failed_probe_of_a_container_is_no_verdict_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*command: object, **_: object) -> None:
        raise subprocess.TimeoutExpired("python", 60.0)

    node = NodeContainers(
        tmp_path / "images",
        Workspaces(lambda _path: pytest.fail("not opened"), shares_disk=True),
        NodeSnapshots(tmp_path / "snapshots"),
    )
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", hangs)
        found = node.capability()
    assert found == Capability("the trial did not end within 1m", is_certain=False)
    node._capability._again_s = 0.0
    assert node.capability().is_certain
