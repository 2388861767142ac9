"""Search spaces as Ray Tune's domains; the only place that needs Tune's sampling API."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

from tuning.expressions import (
    Choice,
    Expression,
    LogUniform,
    Normal,
    RandInt,
    Uniform,
)
from tuning.space import SearchSpace, stripped


def to_tune(space: SearchSpace) -> dict[str, Any]:
    """Return ``{stripped key: Tune domain}`` with the distributions of `space`.

    Where Tune has the same distribution its own domain is used, so that Tune's searchers
    understand it; the others (every quantised one, whose bounds Tune wants to be multiples of
    q, and lognormal) become ``tune.sample_from`` with our own draw. Imports Ray on first use.
    """
    from ray import tune

    def domain(expression: Expression) -> Any:
        if isinstance(expression, Choice):
            return tune.choice(list(expression.options))
        if isinstance(expression, RandInt):
            return tune.randint(0, expression.upper)
        if type(expression) is Uniform:
            return tune.uniform(expression.min_value, expression.max_value)
        if type(expression) is LogUniform:
            # Tune wants the values' bounds, HyperDrive gives their logarithms.
            return tune.loguniform(math.exp(expression.min_value), math.exp(expression.max_value))
        if type(expression) is Normal:
            return tune.randn(expression.mu, expression.sigma)
        return tune.sample_from(functools.partial(_draw, expression))

    return {stripped(key): domain(expression) for key, expression in space.items()}


def _draw(expression: Expression, _: Any = None) -> Any:
    # Tune calls this with the values resolved so far; ours depend on none of them.
    return expression.draw(random.Random())  # noqa: S311
