"""The parameters of a training: one table of names, ranges and defaults."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .errors import ParameterOutOfRangeError


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: Its name in Python; the option is ``--name-with-dashes``.
        kind: int or float.
        lowest: The smallest value; None: any.
        default: Its value when none is given.
        meaning: Its description, one line.
    """

    name: str
    kind: type
    lowest: float | None
    default: float
    meaning: str

    @property
    def option(self) -> str:
        """The option on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def range_text(self) -> str:
        """The range in words."""
        number = "a whole number" if self.kind is int else "a number"
        if self.lowest is None:
            return number
        return f"{number}, {self.lowest:g} or more"


# Azure ML's page names two defaults of the learning rate: 0.001 in its text, 0.1 in its table.
# The text's value is used: with SGD, it converges from random weights on every network here.
TABLE = (
    Parameter("epochs", int, 1, 5, "Passes over the training images."),
    Parameter("batch_size", int, 1, 16, "Images per batch in each process."),
    Parameter("warmup_epochs", int, 0, 0, "Epochs in which the learning rate rises to its value."),
    Parameter(
        "learning_rate",
        float,
        sys.float_info.min,
        0.001,
        "Learning rate of one process; multiplied by the number of processes.",
    ),
    Parameter("random_seed", int, None, 1, "Seed of weights, order and augmentation."),
    Parameter("patience", int, 1, 3, "Epochs without a lower validation loss after which to stop."),
    Parameter("print_frequency", int, 1, 10, "Batches between two lines of the log."),
)
BY_NAME: Mapping[str, Parameter] = {one.name: one for one in TABLE}


def checked(name: str, value: Any) -> Any:
    """Return a parameter's value with its type.

    Raises:
        ParameterOutOfRangeError: it is not a number, or outside the parameter's range.
    """
    parameter = BY_NAME[name]
    try:
        number: float = float(value)
        is_right = math.isfinite(number)
        if is_right and parameter.kind is int:
            # Not through float, which cannot represent all whole numbers.
            exact = Decimal(str(value))
            number = int(exact)
            is_right = number == exact
    except (TypeError, ValueError, ArithmeticError):
        is_right = False
    if not is_right or (parameter.lowest is not None and number < parameter.lowest):
        raise ParameterOutOfRangeError(
            f"{name} is {value!r}; it must be {parameter.range_text} ({parameter.option} "
            f"{parameter.default:g} is the default)"
        )
    return number


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add every parameter as an option; values are checked later, by `values_of`."""
    for one in TABLE:
        parser.add_argument(one.option, default=one.default, help=one.meaning)


def values_of(arguments: Any) -> dict[str, Any]:
    """Return the checked values of all parameters.

    Raises:
        ParameterOutOfRangeError: a value is outside its range.
    """
    return {one.name: checked(one.name, getattr(arguments, one.name)) for one in TABLE}
