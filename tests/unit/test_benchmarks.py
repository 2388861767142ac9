"""The benchmarks that need no Ray run, and their table shows the measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.figures import Figure, table


@pytest.mark.long
def test_the_parts_without_ray_run_and_lose_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["--only", "store", "log", "--rounds", "1", "--quick", "--json", str(report)]) == 0
    written = json.loads(report.read_text())
    names = [figure["name"] for figure in written["figures"]]
    assert names == [
        "durable submits, one client",
        "fsync of this disk",
        "run.log, one call",
        "values lost at kill -9",
    ]
    assert written["figures"][3]["ours"] == 0
    printed = capsys.readouterr().out
    assert "cores, load" in printed
    for name in names:
        assert f"| {name} " in printed


@pytest.mark.parametrize(
    ("figure", "is_met"),
    [
        (Figure("stated", "MiB", 3.0), None),
        (Figure("short enough", "s", 0.1, most=0.1), True),
        (Figure("too long", "s", 0.11, most=0.1), False),
        (Figure("many enough", "1/s", 200.0, least=200), True),
        (Figure("fast, not fast enough", "s", 0.1, 1.9, "peer", most=0.1, faster=20), False),
        (Figure("fast enough", "s", 0.1, 2.0, "peer", most=0.1, faster=20), True),
        (Figure("within the time and more", "s", 17.0, 10.0, "peer", slower=1.3, plus=4), True),
        (Figure("beyond it", "s", 17.1, 10.0, "peer", slower=1.3, plus=4), False),
        (Figure("more is better", "MiB/s", 80.0, 100.0, "peer", share=0.8), True),
        (Figure("no peer, no ratio", "s", 1.0, faster=2), False),
    ],
)  # fmt: skip
def test_a_goal_is_met_or_not(figure: Figure, is_met: bool | None) -> None:
    assert figure.is_met is is_met


def test_table_shows_the_goal_and_the_ratio() -> None:
    lines = table([Figure("one", "s", 0.05, 2.0, "Ray Jobs", most=0.1, faster=20)]).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["one", "0.05 s", "2 s (Ray Jobs)", "40 ×", "≤ 0.1 s, ≥ 20 × faster", "yes"]
    assert len({len(line) for line in lines}) == 1
