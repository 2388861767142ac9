"""What counts as a number."""

from __future__ import annotations

import math

import pytest

from rayjobs.core.numbers import for_json, is_number, is_whole


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_only_an_int_is_a_whole_number(value: object) -> None:
    assert not is_whole(value)


def test_a_whole_number_may_have_a_lower_bound() -> None:
    assert is_whole(-1)
    assert is_whole(1, at_least=1)
    assert not is_whole(0, at_least=1)


@pytest.mark.parametrize("value", [False, math.nan, math.inf, -math.inf, 10**400, "1", None])
def test_only_finite_floats_are_numbers(value: object) -> None:
    assert not is_number(value)


@pytest.mark.parametrize("value", [0, -2, 1.5, 10**300])
def test_numbers(value: object) -> None:
    assert is_number(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (1.5, 1.5),
        (True, True),
        ("inf", "inf"),
        (None, None),
    ],
)
def test_json_has_numbers_that_are_not_finite_as_text(value: object, shown: object) -> None:
    assert for_json(value) == shown
