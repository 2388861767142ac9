"""Search spaces as Ray Tune's domains: the same distributions, without a cluster."""

from __future__ import annotations

import math
import pickle

import pytest

from tests.unit.tuning.test_expressions import EXAMPLES
from tuning.expressions import Expression
from tuning.space import parse_space
from tuning.tune_space import to_tune


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_tune_draws_what_the_expression_draws(example: Expression) -> None:
    [(key, domain)] = to_tune(parse_space({"--x": example})).items()
    assert key == "x"
    assert pickle.loads(pickle.dumps(domain)) is not None
    found = [domain.sample() for _ in range(300)]
    wire = example.to_wire()[1]
    if example.name in ("uniform", "loguniform"):
        low, high = wire if example.name == "uniform" else map(math.exp, wire)
        assert all(low <= value <= high for value in found)
    elif example.name == "randint":
        assert set(found) == set(range(wire[0]))
    elif example.name == "choice":
        assert set(found) == set(wire[0])
    elif example.name.startswith("q"):
        assert all(value % wire[-1] == 0 for value in found)
    assert len(set(found)) > 1
