"""Expressions as Ray Tune's domains, and repeatable draws from them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy
from ray import tune
from ray.tune.search.variant_generator import generate_variants

from rayjobs.tuning.expressions import Choice, Expression, Normal, RandInt, Uniform


def base_domain(expression: Expression) -> Any:
    """Return Tune's domain of an expression's base distribution, see `Expression.value_of`.

    Rounding and exponentials are applied to the draw, as HyperDrive defines them: Tune's own
    quantised domains want bounds that are multiples of q. Options go by index: Tune would take
    an option such as ``{"grid_search": …}`` or ``{"eval": …}`` for a part of the search space.
    """
    if isinstance(expression, Choice):
        return tune.randint(0, len(expression.options))
    if isinstance(expression, RandInt):
        return tune.randint(0, expression.upper)
    if isinstance(expression, Uniform):
        return tune.uniform(expression.min_value, expression.max_value)
    assert isinstance(expression, Normal)
    return tune.randn(0.0, 1.0)  # Tune wants a deviation above 0, HyperDrive takes 0 as well


def draw(expression: Expression, source: str) -> Any:
    """Return a value of `expression` that Tune draws: a function of the arguments alone.

    Args:
        source: Any text. It seeds a generator of its own, of the kind whose numbers numpy keeps
            the same in all versions.
    """
    digest = hashlib.sha256(source.encode()).digest()
    seed = numpy.frombuffer(digest, dtype="<u4")
    generator = numpy.random.RandomState(seed)
    # What Tune's BasicVariantGenerator is made of, without its trials and their folders.
    _, found = next(generate_variants({"x": base_domain(expression)}, random_state=generator))
    return expression.value_of(found["x"])
