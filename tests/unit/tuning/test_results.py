"""The best trial, sorted children, the table, the time left, and what the plots draw."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.tuning import plot_data
from rayjobs.tuning.errors import SweepUsageError
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.pages import write_html
from rayjobs.tuning.plot_data import Curve, apart, curves
from rayjobs.tuning.plots import KINDS, Kind, make_figure, write_plot
from rayjobs.tuning.results import best_trial, eta_s, rows, sorted_children, summary
from rayjobs.tuning.state import SweepState
from rayjobs.tuning.trials import TrialRecord, TrialState
from tests.unit.tuning.simulation import sweep

MAX, MIN = PrimaryMetricGoal.MAXIMIZE, PrimaryMetricGoal.MINIMIZE
COMPLETED, FAILED, CANCELED, RUNNING = (
    TrialState.COMPLETED,
    TrialState.FAILED,
    TrialState.CANCELED,
    TrialState.RUNNING,
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def trial(number: int, state: TrialState, *values: float, **more: Any) -> TrialRecord:
    parameters = {"--lr": 0.1 / (number + 1) ** 3, "opt": "sgd" if number % 2 else "adam"}
    return TrialRecord(
        number=number,
        state=state,
        values=values,
        job_id=f"j{number}",
        **{"parameters": parameters, **more},
    )


TRIALS = [
    trial(0, COMPLETED, 0.5, 0.7, 0.6),
    trial(1, COMPLETED, 0.7),
    trial(2, FAILED, 0.9, reason="it crashed"),
    trial(3, CANCELED, 0.8, reason="stopped trial 3 at interval 1: 0.8 < 0.9"),
    trial(4, COMPLETED, math.nan, math.inf),
    trial(5, RUNNING, 0.95),
    trial(6, COMPLETED),
    trial(7, COMPLETED, 0.1, math.nan),
]


def test_the_best_is_finished_and_finite() -> None:
    best = best_trial(TRIALS, MAX)
    assert best is not None and best.number == 1
    best = best_trial(reversed(TRIALS), MIN)
    assert best is not None and best.number == 0  # trial 7 was lower, and diverged after it
    assert best_trial([TRIALS[7]], MIN, include_failed=True) is None
    assert best_trial([TRIALS[4], TRIALS[5], TRIALS[6]], MAX) is None
    assert best_trial([], MAX) is None


def test_the_best_of_values_is_finite() -> None:
    values = [math.nan, -math.inf, 0.5, math.inf, 0.25, math.nan]
    assert (MAX.best(values), MIN.best(values)) == (0.5, 0.25)
    assert MAX.best([math.nan, math.inf]) is None


def test_of_equal_bests_the_better_end_wins_and_then_the_first() -> None:
    trials = [
        trial(9, COMPLETED, 0.945, 0.936),
        trial(11, COMPLETED, 0.9, 0.945),
        trial(12, COMPLETED, 0.8, 0.945),
    ]
    best = best_trial(trials, MAX)
    assert best is not None and best.number == 11
    lower = [trial(1, COMPLETED, 0.1, 0.3), trial(2, COMPLETED, 0.4, 0.1)]
    best = best_trial(lower, MIN)
    assert best is not None and best.number == 2
    assert numbers(sorted_children(trials, MAX)) == [11, 12, 9]
    assert numbers(sorted_children(trials, MAX, reverse=True)) == [9, 11, 12]


def test_failed_and_stopped_trials_may_be_included() -> None:
    failed = best_trial(TRIALS, MAX, include_failed=True)
    canceled = best_trial(TRIALS, MAX, include_canceled=True)
    assert failed is not None and failed.number == 2
    assert canceled is not None and canceled.number == 3


def numbers(listed: list[dict[str, Any]]) -> list[int]:
    return [int(child["run_id"][1:]) for child in listed]


def test_children_are_sorted_best_first_with_those_without_a_value_last() -> None:
    children = sorted_children(TRIALS, MAX)
    assert numbers(children) == [5, 2, 3, 1, 0, 7, 4, 6]
    assert children[0] == {
        "run_id": "j5",
        "hyperparameters": json.dumps(dict(TRIALS[5].parameters)),
        "best_primary_metric": 0.95,
        "status": "Running",
    }
    assert children[-1]["best_primary_metric"] is None
    # Trial 7 has the lowest value and diverged after it: it comes after all that did not.
    assert numbers(sorted_children(TRIALS, MIN)) == [0, 1, 3, 2, 5, 7, 4, 6]


def test_children_can_be_limited_reversed_and_filtered() -> None:
    assert numbers(sorted_children(TRIALS, MAX, top=2)) == [5, 2]
    assert numbers(sorted_children(TRIALS, MAX, reverse=True)) == [0, 1, 3, 2, 5, 7, 4, 6]
    assert numbers(sorted_children(TRIALS, MAX, discard_no_metric=True)) == [5, 2, 3, 1, 0, 7]


def test_table_marks_the_best_and_the_reason() -> None:
    table = rows(TRIALS, MAX)
    assert [row.number for row in table if row.is_best] == [1]
    assert (table[0].best, table[0].last, table[0].intervals) == (0.7, 0.6, 3)
    assert table[3].note.startswith("stopped trial 3")
    assert table[4].note.startswith("diverged") and table[4].best is None
    assert table[6].last is None


def test_the_estimate_counts_what_running_trials_have_used() -> None:
    spec = sweep(limits={"total": 6, "concurrent": 2})
    now = START + timedelta(seconds=100)
    took_40 = {"started_at": START, "ended_at": START + timedelta(seconds=40)}
    state = SweepState(
        (
            trial(0, COMPLETED, 0.1, **took_40),
            trial(1, COMPLETED, 0.1, **took_40),
            trial(2, RUNNING, started_at=now - timedelta(seconds=30)),
            trial(3, RUNNING, started_at=now - timedelta(seconds=10)),
        ),
        elapsed_s=100,
    )
    # 2 × 40 s unstarted + 10 s + 30 s left = 120 s, two at a time
    assert eta_s(state, spec, now=now) == 60
    found = summary(state, spec, now=now)
    assert (found.total, found.completed, found.running, found.eta_s) == (6, 2, 2, 60)
    assert found.best is not None and found.best_value == 0.1
    assert eta_s(SweepState(), spec, now=now) is None
    short = sweep(limits={"total": 6, "concurrent": 2, "max_duration_s": 110})
    assert eta_s(state, short, now=now) == 10


def test_history_follows_completed_trials_alone() -> None:
    data = plot_data.history(TRIALS, MAX)
    assert [number for number, _, _ in data.points] == [0, 1, 2, 3, 5, 7]
    assert data.leader == ((0, 0.7), (1, 0.7))  # trial 7 diverged after its best


def test_curves_have_a_gap_where_a_report_was_not_finite() -> None:
    curves = {curve.number: curve.values for curve in plot_data.curves(TRIALS)}
    assert curves[0] == (0.5, 0.7, 0.6) and 6 not in curves
    assert all(math.isnan(value) for value in curves[4])


def test_parallel_axes_suit_their_values() -> None:
    data = plot_data.parallel(TRIALS, MAX, "accuracy")
    rate, optimiser, metric = data.axes
    assert (rate.label, optimiser.label, metric.label) == ("lr", "opt", "accuracy")
    assert rate.values[0] == pytest.approx(-1)  # log10(0.1): it spans more than 50 ×
    assert [text for _, text in optimiser.ticks] == ["adam", "sgd"]
    assert data.colours == (0.7, 0.7, 0.9, 0.8, None, 0.95, None, 0.1)
    assert data.numbers == (0, 1, 2, 3, 4, 5, 6, 7)  # those without a value are on the plot too
    assert metric.ticks == tuple((n / 5, f"{n / 5:g}") for n in range(6))


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e6))
@pytest.mark.long
def test_ticks_are_round_and_take_in_all_values(low: float, span: float) -> None:
    ticks = plot_data.nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] <= low + 1e-9 * span and ticks[-1] >= low + span * (1 - 1e-6)
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    assert f"{step:.2e}"[:4] in ("1.00", "2.00", "2.50", "5.00")


def test_long_choices_are_folded_and_failures_counted() -> None:
    assert plot_data.folded("sgd with a long momentum") == "sgd with a long\nmomentum"
    assert "…" in plot_data.folded("x" * 90) and len(plot_data.folded("x" * 90)) < 60
    assert plot_data.counts_text(TRIALS[:1]) == "1 trial: 1 completed"
    assert "failed" in plot_data.counts_text(TRIALS)


@given(
    st.lists(st.tuples(st.sampled_from([0.2, 0.21, 0.6, 0.9]), st.floats(0, 1)), max_size=60),
    st.floats(0.02, 0.2),
)
@pytest.mark.long
def test_texts_next_to_curves_never_overlap_and_stay_near_their_point(
    points: list[tuple[float, float]], up: float
) -> None:
    heights = apart(points, across=0.05, up=up, reach=0.3)
    placed = [(x, y, h) for (x, y), h in zip(points, heights, strict=True) if h is not None]
    for position, (x, y, height) in enumerate(placed):
        assert abs(height - y) <= 0.3
        assert up / 2 - 1e-9 <= height <= 1 - up / 2 + 1e-9
        for other_x, _, other in placed[position + 1 :]:
            assert abs(x - other_x) >= 0.05 or abs(height - other) >= up - 1e-9


def test_text_with_space_is_at_the_height_of_its_point() -> None:
    points = [(0.5, 0.2), (0.5, 0.5), (0.9, 0.5)]
    assert apart(points, across=0.05, up=0.05, reach=0.2) == [0.2, 0.5, 0.5]


def test_a_curve_ends_at_its_last_finite_report() -> None:
    [curve] = curves([trial(0, COMPLETED, 0.1, 0.2, float("nan"))])
    assert curve.end == (2, 0.2)
    assert Curve(1, COMPLETED, (float("nan"),)).end is None


@pytest.mark.long
def test_pngs_are_drawn_even_from_a_single_trial(tmp_path: Path) -> None:
    with pytest.raises(SweepUsageError, match=r"\.png, \.svg, \.pdf"):
        write_plot(tmp_path / "p.gif", "curves", TRIALS, name="s", metric="a", goal=MAX)
    drawn = write_plot(tmp_path / "p.svg", "parallel", TRIALS, name="s", metric="a", goal=MAX)
    assert "<svg" in drawn.read_text()
    drawn = write_plot(tmp_path / "p.pdf", "history", TRIALS, name="s", metric="a", goal=MAX)
    assert drawn.read_bytes().startswith(b"%PDF")
    for trials in (TRIALS, TRIALS[:1]):
        for kind in KINDS:
            path = write_plot(
                tmp_path / "p.png", kind, trials, name="$x_1$ <b>", metric="a$", goal=MAX
            )
            assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def _boxes(texts: Any) -> list[Any]:
    return [text.get_window_extent() for text in texts if text.get_text()]


def _overlapping(boxes: list[Any]) -> int:
    return sum(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.long
def test_no_label_of_a_plot_covers_another_or_a_mark() -> None:
    names = ["--learning-rate-schedule", "--weight-decay-factor", "--augmentation-strength",
             "--dropout-probability", "--momentum", "--batch-size"]  # fmt: skip
    trials = [
        trial(number, COMPLETED if number % 4 else FAILED,
              *[0.8 - 0.1 / (1 + number)] * (number % 4),
              parameters={**dict.fromkeys(names, number + 1), "layer": f"layer-{number}"})
        for number in range(48)
    ]  # fmt: skip
    what: dict[str, Any] = {"name": "digits", "metric": "accuracy", "goal": MAX}
    drawn = make_figure("parallel", trials, **what)
    drawn.draw_without_rendering()
    axes = drawn.axes[0]
    assert _overlapping(_boxes(axes.get_xticklabels())) == 0
    assert _overlapping(_boxes(axes.texts)) == 0
    others: tuple[Kind, ...] = ("history", "curves")
    for kind in others:
        drawn = make_figure(kind, trials, **what)
        drawn.draw_without_rendering()
        plot = drawn.axes[0].get_window_extent()
        assert not drawn.legends[0].get_window_extent().overlaps(plot)
        assert all(plot.x0 <= box.x0 and box.y1 <= plot.y1 for box in _boxes(drawn.axes[0].texts))


@pytest.mark.long
def test_the_page_carries_everything_and_escapes_every_name(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    trials = [
        trial(0, COMPLETED, 0.5, parameters={evil: evil, "x": 1}),
        trial(1, FAILED, 0.4, parameters={evil: "b", "x": 2}, reason=evil),
    ]
    page = write_html(tmp_path / "p.html", trials, name=evil, metric=evil, goal=MIN)
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>")
    assert 'src="http' not in text and "<link" not in text.split("<body>")[0]
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize("trials", [[], [TRIALS[6]], [TRIALS[4]]])
def test_empty_plot_is_reported(trials: list[TrialRecord], tmp_path: Path) -> None:
    with pytest.raises(SweepUsageError, match="nothing to draw"):
        write_plot(tmp_path / "p.png", "curves", trials, name="s", metric="accuracy", goal=MAX)
    with pytest.raises(SweepUsageError, match="no plot 'pie'"):
        write_plot(
            tmp_path / "p.png",
            "pie",  # type: ignore[arg-type]  # the mistake that is tested
            TRIALS,
            name="s",
            metric="accuracy",
            goal=MAX,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_trials_that_failed_first_are_inside_the_history() -> None:
    from matplotlib.figure import Figure

    from rayjobs.tuning.plots import _history

    trials = [
        *(trial(number, TrialState.FAILED) for number in (0, 1, 2, 9)),
        trial(3, TrialState.COMPLETED, 0.5),
        trial(4, TrialState.COMPLETED, 0.7),
    ]
    figure = Figure()
    _history(figure, plot_data.history(trials, PrimaryMetricGoal.MAXIMIZE), "accuracy", 4)
    low, high = figure.axes[0].get_xlim()
    assert low < 0
    assert high > 9


def test_a_plot_of_ended_trials_without_the_metric_names_what_they_reported(
    tmp_path: Path,
) -> None:
    ended = replace(TRIALS[6], state=TrialState.FAILED, values=(), metric_names=("loss",))
    with pytest.raises(SweepUsageError, match=r"nothing to draw\. They reported: loss\.") as caught:
        write_plot(tmp_path / "p.png", "curves", [ended], name="s", metric="accuracy", goal=MAX)
    assert "Wait" not in str(caught.value)
