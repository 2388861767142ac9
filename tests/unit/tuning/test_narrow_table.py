"""The trial table on a narrow terminal keeps what distinguishes the trials."""

from __future__ import annotations

from rayjobs.tuning.watch import HEADER, fitted

REASON = "trial never reported the metric 'acuracy'; it reported: accuracy. Did you mean that?"


def row(number: int, parameters: str, reason: str = "") -> tuple[str, ...]:
    return (str(number), "Completed", "0.123456", "0.123456", "12", "1f3c88aa", parameters, reason)


def parameters_of(cells: list[tuple[str, ...]], columns: int) -> list[str]:
    header, rows = fitted(cells, columns)
    for line in rows:
        fixed = [max(len(head), len(cell)) for head, cell in zip(header, line, strict=True)][:-1]
        assert sum(fixed) + 2 * len(fixed) <= columns  # the reason alone is cut by the table
    return [line[header.index("PARAMETERS")] for line in rows]


CELLS = [
    row(0, "lr=0.0381885, hidden-size=128, optimizer=sgd, weight-decay=0.010958"),
    row(1, "lr=0.0446693, hidden-size=64, optimizer=sgd, weight-decay=0.000489"),
]


def test_a_wide_terminal_shows_parameters_as_they_are() -> None:
    assert fitted(CELLS, 200) == (HEADER, CELLS)


def test_at_80_columns_all_values_that_differ_are_shown() -> None:
    assert parameters_of(CELLS, 80) == [
        "lr=0.0381885, hi=128, we=0.010958",
        "lr=0.0446693, hi=64, we=0.000489",
    ]


def test_a_long_reason_leaves_parameters_most_of_the_width() -> None:
    failed = [(*one[:-1], REASON) for one in CELLS]
    shown = parameters_of(failed, 80)
    assert shown == [
        "lr=0.0381885, hi=128, we=0.010958",
        "lr=0.0446693, hi=64, we=0.000489",
    ]


def test_shortened_names_stay_distinct() -> None:
    cells = [
        row(0, "learning-rate=0.0381885, learning-decay=0.1234567, layers=3"),
        row(1, "learning-rate=0.0446693, learning-decay=0.7654321, layers=4"),
    ]
    first, _ = parameters_of(cells, 80)
    names = [part.partition("=")[0] for part in first.rstrip("…").split(", ")]
    assert names == ["learning-r", "learning-d", "la"]


def test_a_single_trial_keeps_its_parameters() -> None:
    (only,) = parameters_of(CELLS[:1], 80)
    assert only.startswith("lr=0.0381885, hi=128, op=sgd")
