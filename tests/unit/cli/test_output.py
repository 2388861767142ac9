"""Times, sizes and tables as users read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from rayjobs.cli.output import Redrawn, ago_text, cut, facts, print_json, table, wrapped
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Resources

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "just now"), (0.3, "just now"), (59, "59s ago"), (61, "1m ago"), (90000, "1d ago")],
)
def test_how_long_ago(seconds: float, text: str) -> None:
    assert ago_text(NOON - timedelta(seconds=seconds), now=NOON) == text
    assert ago_text(None) == "-"


def test_a_table_aligns_and_cuts_its_last_column() -> None:
    text = table(
        [("a", "1", "short"), ("bb", "22", "a very long reason")],
        ("ID", "N", "WHY"),
        right=(1,),
        columns=19,
    )
    assert text.splitlines() == ["ID   N  WHY", "a    1  short", "bb  22  a very lon…"]


def test_a_colour_fills_the_text_of_a_cell_and_not_its_padding() -> None:
    rows = [("a", "7", "ok"), ("bb", "", "")]
    colours = [("red", "red", "red")] * 2
    text = table(rows, ("ID", "NUM", "END"), right=(1,), colours=colours, columns=80)
    assert text.splitlines() == [
        "ID  NUM  END",
        "\x1b[31ma\x1b[0m     \x1b[31m7\x1b[0m  \x1b[31mok\x1b[0m",
        "\x1b[31mbb\x1b[0m",
    ]


def test_cut_keeps_what_fits() -> None:
    assert (cut("abc", 3), cut("abcd", 3)) == ("abc", "ab…")


def test_facts_leave_out_what_is_empty() -> None:
    assert facts([("Name", "x"), ("Tags", ""), ("Id", "1")]) == "Name  x\nId    1"


def test_facts_stay_on_one_line_without_control_codes() -> None:
    forged = "x\nState  Completed\x1b[2J"
    assert facts([("Name", forged)]) == "Name  x\\nState  Completed\\x1b[2J"


def test_facts_take_a_colour_by_name() -> None:
    shown = facts([("State", "Failed"), ("Name", "x")], colours={"State": "red", "Name": None})
    assert shown == "State  \x1b[31mFailed\x1b[0m\nName   x"


def test_drawing_replaces_the_previous_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "4")
    redrawn = Redrawn()
    redrawn.draw("one\ntwo")
    redrawn.draw("\x1b[31m1234567890ab\x1b[0m")  # it would wrap
    redrawn.draw("1\n2\n3\n4\n5")  # it would scroll
    redrawn.draw("")
    assert capsys.readouterr().out == (
        "one\x1b[K\ntwo\x1b[K\n\x1b[J"
        "\x1b[2A12345678…\x1b[K\n\x1b[J"
        "\x1b[1A1\x1b[K\n2\x1b[K\n3\x1b[K\n\x1b[J"
        "\x1b[3A\x1b[J"
    )


def test_json_supports_times_states_and_specs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": NOON, "state": JobState.RUNNING, "spec": Resources(), "name": "é"})
    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-03-01T12:00:00.000000Z",
        "state": "Running",
        "spec": {
            "cpus": 1.0,
            "gpus": 0.0,
            "memory_gib": None,
            "node_types": [],
            "spot": None,
        },
        "name": "é",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("error: give --memory-per-proc", "error: give\n  --memory-per-proc"),
        ("see /a/very/long/path/to/a/file.txt", "see\n  /a/very/long/path/to/a/file.txt"),
        ("  - one two three four five", "  - one two three\n    four five"),
        ("  rayjobs show 1f3c   all about the job", "  rayjobs show 1f3c   all about the job"),
        ("a line\nanother line of words", "a line\nanother line of\n  words"),
        ("\x1b[31mred red red\x1b[0m red", "\x1b[31mred red red\x1b[0m red"),
    ],
)
def test_messages_are_wrapped_at_words(text: str, shown: str) -> None:
    assert wrapped(text, 18) == shown
