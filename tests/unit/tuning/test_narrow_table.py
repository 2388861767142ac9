"""The trial table on a narrow terminal keeps what distinguishes the trials."""

from __future__ import annotations

from dataclasses import replace

from rayjobs.tuning.watch import HEADER, Line, fitted

REASON = "trial never reported the metric 'acuracy'; it reported: accuracy. Did you mean that?"


def line(number: int, parameters: str, reason: str = "") -> Line:
    pairs = tuple(
        (name, value) for name, _, value in (p.partition("=") for p in parameters.split(", "))
    )
    return Line(
        number=number,
        is_best=False,
        is_open=False,
        state="Stopped early",
        short_state="Stopped",
        best="0.123456",
        last="0.123456",
        reports="12",
        job="1f3c88aa",
        parameters=pairs,
        reason=f"at {reason}",
        short_reason=reason,
    )


def parameters_of(lines: list[Line], columns: int) -> list[str]:
    header, rows = fitted(lines, columns)
    for cells in rows:
        fixed = [max(len(head), len(cell)) for head, cell in zip(header, cells, strict=True)][:-1]
        assert sum(fixed) + 2 * len(fixed) <= columns  # the reason alone is cut by the table
    return [cells[header.index("PARAMETERS")] for cells in rows]


LINES = [
    line(0, "lr=0.0381885, hidden-size=128, optimizer=sgd, weight-decay=0.010958"),
    line(1, "lr=0.0446693, hidden-size=64, optimizer=sgd, weight-decay=0.000489"),
]


def test_a_wide_terminal_shows_parameters_as_they_are() -> None:
    assert fitted(LINES, 200) == (HEADER, [one.cells for one in LINES])


def test_at_80_columns_all_values_that_differ_are_shown() -> None:
    assert parameters_of(LINES, 80) == [
        "lr=0.0381885, hi=128, we=0.010958",
        "lr=0.0446693, hi=64, we=0.000489",
    ]


def test_a_long_reason_leaves_parameters_most_of_the_width() -> None:
    failed = [replace(one, short_reason=REASON) for one in LINES]
    shown = parameters_of(failed, 80)
    assert shown == [
        "lr=0.0381885, hi=128, we=0.010958",
        "lr=0.0446693, hi=64, we=0.000489",
    ]


def test_shortened_names_stay_distinct() -> None:
    lines = [
        line(0, "learning-rate=0.0381885, learning-decay=0.1234567, layers=3"),
        line(1, "learning-rate=0.0446693, learning-decay=0.7654321, layers=4"),
    ]
    first, _ = parameters_of(lines, 80)
    names = [part.partition("=")[0] for part in first.rstrip("…").split(", ")]
    assert names == ["learning-r", "learning-d", "la"]


def test_a_single_trial_keeps_its_parameters() -> None:
    (only,) = parameters_of(LINES[:1], 80)
    assert only.startswith("lr=0.0381885, hi=128, op=sgd")
