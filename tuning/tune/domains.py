"""Expressions as Ray Tune's domains, and repeatable draws from them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy
from ray import tune
from ray.tune.search.variant_generator import generate_variants

from rayjobs.tuning.expressions import Choice, Expression, Normal, RandInt, Uniform


def base_domain(expression: Expression) -> Any:
    """Return Tune's domain for an expression's base distribution; see `Expression.value_of`.

    Rounding and exponentials are applied to the draw, as HyperDrive defines them: Tune's own
    quantized domains require bounds that are multiples of q. Options are passed by index: Tune
    would treat an option such as ``{"grid_search": …}`` or ``{"eval": …}`` as part of the search
    space.
    """
    if isinstance(expression, Choice):
        return tune.randint(0, len(expression.options))
    if isinstance(expression, RandInt):
        return tune.randint(0, expression.upper)
    if isinstance(expression, Uniform):
        return tune.uniform(expression.min_value, expression.max_value)
    assert isinstance(expression, Normal)
    return tune.randn(0.0, 1.0)  # Tune requires a deviation above 0; HyperDrive also accepts 0


def draw(expression: Expression, source: str) -> Any:
    """Return a value of `expression` that Tune draws; it depends only on the arguments.

    Args:
        source: Any text. It seeds a separate generator, of the kind whose numbers stay the same in
            all numpy versions.
    """
    digest = hashlib.sha256(source.encode()).digest()
    seed = numpy.frombuffer(digest, dtype="<u4")
    generator = numpy.random.RandomState(seed)
    # The core of Tune's BasicVariantGenerator, without its trials and their folders.
    _, found = next(generate_variants({"x": base_domain(expression)}, random_state=generator))
    return expression.value_of(found["x"])
