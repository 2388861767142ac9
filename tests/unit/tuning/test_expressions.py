"""The ten expressions: what they draw, what they refuse, their wire form."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.expressions import (
    KINDS,
    Expression,
    choice,
    lognormal,
    loguniform,
    normal,
    qlognormal,
    qloguniform,
    qnormal,
    quniform,
    randint,
    uniform,
)
from rayjobs.tuning.space import parse_expression
from rayjobs.tuning.tune.domains import draw

EXAMPLES: list[Expression] = [
    choice(16, 32, 64),
    randint(8),
    uniform(0.1, 0.9),
    quniform(1, 100, 7),
    loguniform(-9, -2),
    qloguniform(0, 5, 2),
    normal(10, 3),
    qnormal(100, 20, 5),
    lognormal(0, 1),
    qlognormal(3, 1, 4),
]


def draws(expression: Expression, count: int = 3000) -> list[Any]:
    return [draw(expression, f"11/{number}") for number in range(count)]


def test_every_expression_has_an_example() -> None:
    assert {example.name for example in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_wire_form_is_json_and_reads_back_as_the_same_expression(example: Expression) -> None:
    wire = json.loads(json.dumps(example.to_wire()))
    assert wire[0] == example.name
    assert parse_expression(wire) == example
    assert parse_expression({wire[0]: wire[1]}) == example


def test_wire_forms_are_azure_mls() -> None:
    assert choice(1, 2).to_wire() == ["choice", [[1, 2]]]
    assert choice([1, 2]) == choice((1, 2)) == choice(1, 2)
    assert choice(range(3)).to_wire() == ["choice", [[0, 1, 2]]]
    assert randint(4).to_wire() == ["randint", [4]]
    assert qnormal(1, 2, 3).to_wire() == ["qnormal", [1, 2, 3]]
    assert parse_expression(["choice", [1, 2]]) == choice(1, 2)


@pytest.mark.long
def test_choice_draws_every_option_about_equally() -> None:
    found = draws(choice("a", "b", "c"))
    assert {option: round(found.count(option) / len(found), 1) for option in "abc"} == {
        "a": 0.3,
        "b": 0.3,
        "c": 0.3,
    }


@pytest.mark.long
def test_randint_draws_zero_and_never_its_upper_bound() -> None:
    assert set(draws(randint(4))) == {0, 1, 2, 3}


def test_samples_are_valid_json_even_for_extreme_arguments() -> None:
    extremes = [randint(1), randint(2**63), loguniform(-1000, -999), normal(1e300, 0)]
    for expression in (*EXAMPLES, *extremes, choice({"grid_search": [1]}, {"eval": "1/0"})):
        value = draw(expression, "any")
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_a_draw_depends_on_its_source_alone() -> None:
    assert draw(uniform(0, 1), "a") == draw(uniform(0, 1), "a") != draw(uniform(0, 1), "b")


@pytest.mark.long
def test_uniform_stays_within_its_bounds() -> None:
    found = draws(uniform(-1, 3))
    assert -1 <= min(found) < -0.95 and 2.95 < max(found) <= 3
    assert statistics.fmean(found) == pytest.approx(1, abs=0.1)


@pytest.mark.long
def test_quniform_draws_multiples_of_q_as_ints() -> None:
    found = draws(quniform(1, 10, 3))
    # round(1/3)*3 = 0 … round(10/3)*3 = 9: multiples of q, not steps from the lower bound.
    assert set(found) == {0, 3, 6, 9}
    assert all(type(value) is int for value in found)


@pytest.mark.long
def test_loguniform_takes_logarithms_as_bounds() -> None:
    found = draws(loguniform(-9, -2))
    assert math.exp(-9) <= min(found) and max(found) <= math.exp(-2)
    assert statistics.fmean(math.log(value) for value in found) == pytest.approx(-5.5, abs=0.15)


@pytest.mark.long
def test_qloguniform_rounds_the_exponential() -> None:
    found = draws(qloguniform(0, 3, 5))
    assert set(found) == {0, 5, 10, 15, 20}  # exp(3) = 20.09


@pytest.mark.long
def test_normal_has_its_mean_and_deviation() -> None:
    found = draws(normal(10, 3))
    assert statistics.fmean(found) == pytest.approx(10, abs=0.2)
    assert statistics.stdev(found) == pytest.approx(3, abs=0.15)
    assert draws(normal(5, 0), 3) == [5, 5, 5]


@pytest.mark.long
def test_qnormal_rounds_to_multiples() -> None:
    found = draws(qnormal(0, 4, 5))
    assert all(value % 5 == 0 for value in found) and {-5, 0, 5} <= set(found)


@pytest.mark.long
def test_lognormal_is_the_exponential_of_a_gaussian() -> None:
    found = draws(lognormal(1, 0.5))
    assert min(found) > 0
    assert statistics.fmean(math.log(value) for value in found) == pytest.approx(1, abs=0.05)


@pytest.mark.long
def test_qlognormal_rounds_to_multiples() -> None:
    found = draws(qlognormal(2, 0.5, 4))
    assert all(type(value) is int and value % 4 == 0 and value >= 0 for value in found)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: choice(), "no options"),
        (lambda: choice([]), "no options"),
        (lambda: choice(object()), "JSON"),
        (lambda: choice(math.nan), "JSON"),
        (lambda: randint(0), "whole number of 1"),
        (lambda: randint(2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: randint(True), "whole number"),
        (lambda: randint(2**63 + 1), "whole number"),
        (lambda: uniform(-1.7e308, 1.7e308), "too far apart"),
        (lambda: uniform(1, 1), "min_value < max_value"),
        (lambda: uniform(2, 1), "min_value < max_value"),
        (lambda: uniform("0", 1), "finite number, not text"),  # type: ignore[arg-type]
        (lambda: uniform(0, math.inf), "finite number"),
        (lambda: uniform(0, True), "finite number"),
        (lambda: quniform(0, 1, 0.5), "whole number"),  # type: ignore[arg-type]
        (lambda: quniform(0, 1, 0), "at least 1"),
        (lambda: loguniform(0, 1000), "natural logarithms"),
        (lambda: normal(0, -1), "0 or more"),
        (lambda: lognormal(700, 10), "natural logarithms"),
        (lambda: qnormal(0, 1, -2), "at least 1"),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(make: object, message: str) -> None:
    with pytest.raises(SweepError, match=message) as caught:
        make()  # type: ignore[operator]
    assert caught.value.problems[0].remedy


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (["unifrom", [0, 1]], "Did you mean 'uniform'"),
        (["uniform", [0]], r"uniform\(min_value, max_value\)"),
        (["uniform", [0, 1, 2]], r"uniform\(min_value, max_value\)"),
        ([16, 32, 64], "choice"),
        (0.1, "fixed value"),
        ("uniform", "fixed value"),
        ({"uniform": [0, 1], "q": 2}, "fixed value"),
    ],
)
def test_wrong_wire_form_suggests_the_correct_one(wire: object, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        parse_expression(wire)


bounds = st.floats(-50, 50)


@given(low=bounds, width=st.floats(0.01, 50), q=st.integers(1, 20), seed=st.integers(0, 10**6))
@pytest.mark.long
def test_quantised_values_are_finite_multiples(low: float, width: float, q: int, seed: int) -> None:
    for expression in (
        quniform(low, low + width, q),
        qloguniform(low, low + width, q),
        qnormal(low, width, q),
        qlognormal(low, width / 10, q),
    ):
        value = draw(expression, str(seed))
        assert type(value) is int and value % q == 0
