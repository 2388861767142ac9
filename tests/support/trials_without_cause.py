"""Trials as schema version 12 stored them, with the cause of their end only in a sentence."""

from __future__ import annotations

SWEEP = "mnist_1732780800_0c0ffee0"
# (state, reason) of trial 0, 1, …, and the cause that the upgrade finds.
TRIALS = (
    ("Completed", "", None),
    ("Failed", "trial 1 never reported the metric 'f1', nor any other. Log it: …", "no_metric"),
    ("Canceled", "stopped trial 2 at interval 4: 0.612 < 0.701/(1+0.1)", "policy"),
    ("Canceled", "stopped trial 3: the sweep was canceled", "sweep_canceled"),
    ("Running", "stopped trial 4: the sweep's time is up: 11s of 10s", "sweep_ended"),
    ("Failed", "ValueError: no", "job"),
    ("Running", "", None),
)
# The details that a later upgrade finds.
DETAILS = (
    "",
    "never reported the metric 'f1', nor any other. Log it: …",
    "interval 4: 0.612 < 0.701/(1+0.1)",
    "the sweep was canceled",
    "the sweep's time is up: 11s of 10s",
    "",
    "",
)
INSERT = """
INSERT INTO trials (sweep, number, state, parameters, reports, reason, judged, stop_requested,
    metric_names) VALUES ({0}, {0}, {0}, '{{}}', '[]', {0}, 0, {0}, '[]')
"""


def statement(mark: str) -> str:
    """Return the statement that stores a trial, with the driver's placeholder `mark`."""
    return INSERT.format(mark)


def rows() -> list[tuple[str, int, str, str, int]]:
    """Return the values for the statement, a row for each trial."""
    return [
        (SWEEP, number, state, reason, int("stopped" in reason))
        for number, (state, reason, _) in enumerate(TRIALS)
    ]
