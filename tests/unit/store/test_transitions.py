"""The statements that change a job's state make the steps of the table, and no others."""

from __future__ import annotations

import re

import pytest

from rayjobs.jobs.states import NEXT, JobState
from rayjobs.store import transitions

STATES = "|".join(JobState)


def pairs_of(statement: str) -> set[tuple[JobState, JobState]]:
    """Return the (old, new) pairs that a statement names."""
    assignments, _, condition = statement.partition("WHERE")
    (new,) = re.findall(rf"state = '({STATES})'", assignments)
    (old,) = re.findall(r"state (?:= |IN \()((?:'\w+'(?:, )?)+)", condition)
    return {(JobState(name), JobState(new)) for name in re.findall(r"'(\w+)'", old)}


@pytest.mark.parametrize("statement", transitions.ALL)
def test_each_statement_makes_steps_of_the_table(statement: str) -> None:
    for old, new in pairs_of(statement):
        assert new in NEXT[old]


@pytest.mark.parametrize("statement", transitions.ALL)
def test_each_statement_names_job_and_attempt(statement: str) -> None:
    condition = statement.partition("WHERE")[2]
    assert "id = :job" in condition
    assert "attempt = :attempt" in condition


def test_together_they_make_every_step() -> None:
    made = set().union(*(pairs_of(statement) for statement in transitions.ALL))
    assert made == {(old, new) for old, news in NEXT.items() for new in news}


def test_all_has_every_statement_that_sets_a_state() -> None:
    setting = {
        value
        for value in vars(transitions).values()
        if isinstance(value, str) and re.search(r"UPDATE jobs SET state", value)
    }
    assert setting == set(transitions.ALL)


def test_moves_and_ends_are_filed_under_their_pairs() -> None:
    for pair, statement in transitions.MOVES.items():
        assert pairs_of(statement) == {pair}
    for state, statement in transitions.ENDS.items():
        assert {new for _, new in pairs_of(statement)} == {state}
