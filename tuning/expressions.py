"""HyperDrive's ten parameter expressions: validated values on four base distributions.

Nothing is drawn here: Ray Tune draws from the base distribution (`tuning.tune.domains`), and an
expression converts a draw to a parameter, as HyperDrive defines it.

Source: ``azureml.train.hyperdrive.parameter_expressions``.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from rayjobs.core.numbers import is_number, is_whole
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.errors import problem

_MAX_EXPONENT = 709.0  # math.exp overflows just above
_MOST_INTEGERS = 2**63  # of one draw
_MAX_SIGMAS = 8.6  # a Gaussian made from 53-bit uniforms never exceeds this


@dataclass(frozen=True)
class Expression(ABC):
    """One parameter's distribution. Equal expressions are equal values; all are immutable."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def args(self) -> list[Any]:
        """The arguments of the wire form."""

    @abstractmethod
    def value_of(self, drawn: Any) -> Any:
        """Return the parameter for a draw from the base distribution.

        The base distribution depends on the expression's class, the first match of: Choice, an
        index of its options; RandInt, an integer in [0, upper); Uniform, a real number between its
        bounds; Normal, a Gaussian number with mean 0 and standard deviation 1.
        """

    def to_wire(self) -> list[Any]:
        """Return ``[name, [args]]``, plain JSON data."""
        return [self.name, self.args]


@dataclass(frozen=True)
class Choice(Expression):
    """One of `options`, each with the same probability; an option given twice counts twice."""

    name: ClassVar[str] = "choice"
    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise problem("", "choice() has no options.", "Give at least one, e.g. choice(16, 32).")
        for option in self.options:
            try:
                json.dumps(option, allow_nan=False)
            except (TypeError, ValueError):
                raise problem(
                    "",
                    f"the option {option!r} of choice cannot be written as JSON.",
                    "Use numbers, text, booleans, or lists and dicts of them.",
                ) from None

    @property
    def args(self) -> list[Any]:
        """One list with all options."""
        return [list(self.options)]

    @property
    def different(self) -> list[Any]:
        """The options without repeats, compared as JSON text.

        1, 1.0 and True are equal in Python but differ for a script.
        """
        return list({json.dumps(option): option for option in self.options}.values())

    def value_of(self, drawn: int) -> Any:
        """Return the option with this index."""
        return self.options[drawn]


@dataclass(frozen=True)
class RandInt(Expression):
    """A whole number in [0, upper)."""

    name: ClassVar[str] = "randint"
    upper: int

    def __post_init__(self) -> None:
        if not is_whole(self.upper) or not 1 <= self.upper <= _MOST_INTEGERS:
            raise problem(
                "",
                f"randint's upper bound is {self.upper!r}.",
                "Give a whole number of 1 … 2**63; values are 0 … upper - 1.",
            )

    @property
    def args(self) -> list[Any]:
        """The upper bound, which is never drawn itself."""
        return [self.upper]

    def value_of(self, drawn: int) -> int:
        """Return the draw."""
        return drawn


@dataclass(frozen=True)
class Uniform(Expression):
    """A real number between two bounds."""

    name: ClassVar[str] = "uniform"
    min_value: float
    max_value: float

    def __post_init__(self) -> None:
        _check_numbers(self.name, min_value=self.min_value, max_value=self.max_value)
        if self.min_value >= self.max_value:
            raise problem(
                "",
                f"{self.name} needs min_value < max_value, and {self.min_value!r} is not less "
                f"than {self.max_value!r}.",
                "Swap the bounds, or use choice() for a single value.",
            )
        if not math.isfinite(self.max_value - self.min_value):
            raise problem(
                "",
                f"{self.name}'s bounds, {self.min_value!r} and {self.max_value!r}, are too far "
                "apart for a float.",
                "Give closer bounds, or search the logarithm.",
            )

    @property
    def args(self) -> list[Any]:
        """Both bounds."""
        return [self.min_value, self.max_value]

    def value_of(self, drawn: float) -> float:
        """Return the draw."""
        return drawn


@dataclass(frozen=True)
class QUniform(Uniform):
    """``round(uniform / q) * q``: a multiple of the whole number q, always an int."""

    name: ClassVar[str] = "quniform"
    q: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self.name, self.q)

    @property
    def args(self) -> list[Any]:
        """Both bounds and the step."""
        return [self.min_value, self.max_value, self.q]

    @property
    def indices(self) -> tuple[int, int]:
        """The smallest and largest multiple: values are ``k * q`` for k between them."""
        return round(self.min_value / self.q), round(self.max_value / self.q)

    def value_of(self, drawn: float) -> int:
        """Return the multiple of q that is nearest to the value."""
        return _quantised(super().value_of(drawn), self.q)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """``exp(uniform(min, max))``: the bounds are natural logarithms."""

    name: ClassVar[str] = "loguniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_exponent(self.name, self.max_value)

    def value_of(self, drawn: float) -> float:
        """Return ``exp(drawn)``."""
        return math.exp(drawn)


@dataclass(frozen=True)
class QLogUniform(LogUniform):
    """``round(exp(uniform(min, max)) / q) * q``."""

    name: ClassVar[str] = "qloguniform"
    q: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self.name, self.q)

    @property
    def args(self) -> list[Any]:
        """Both bounds and the step."""
        return [self.min_value, self.max_value, self.q]

    def value_of(self, drawn: float) -> int:
        """Return the multiple of q that is nearest to the value."""
        return _quantised(super().value_of(drawn), self.q)


@dataclass(frozen=True)
class Normal(Expression):
    """A real number from a Gaussian with mean mu and standard deviation sigma."""

    name: ClassVar[str] = "normal"
    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _check_numbers(self.name, mu=self.mu, sigma=self.sigma)
        if self.sigma < 0:
            raise problem(
                "",
                f"{self.name}'s sigma is {self.sigma!r}.",
                "A standard deviation is 0 or more.",
            )

    @property
    def args(self) -> list[Any]:
        """Mean and standard deviation."""
        return [self.mu, self.sigma]

    def value_of(self, drawn: float) -> float:
        """Return ``mu + sigma * drawn``."""
        return self.mu + self.sigma * drawn


@dataclass(frozen=True)
class QNormal(Normal):
    """``round(normal(mu, sigma) / q) * q``."""

    name: ClassVar[str] = "qnormal"
    q: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self.name, self.q)

    @property
    def args(self) -> list[Any]:
        """Mean, standard deviation and step."""
        return [self.mu, self.sigma, self.q]

    def value_of(self, drawn: float) -> int:
        """Return the multiple of q that is nearest to the value."""
        return _quantised(super().value_of(drawn), self.q)


@dataclass(frozen=True)
class LogNormal(Normal):
    """``exp(normal(mu, sigma))``."""

    name: ClassVar[str] = "lognormal"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_exponent(self.name, self.mu + _MAX_SIGMAS * self.sigma)

    def value_of(self, drawn: float) -> float:
        """Return ``exp(mu + sigma * drawn)``."""
        return math.exp(super().value_of(drawn))


@dataclass(frozen=True)
class QLogNormal(LogNormal):
    """``round(exp(normal(mu, sigma)) / q) * q``."""

    name: ClassVar[str] = "qlognormal"
    q: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self.name, self.q)

    @property
    def args(self) -> list[Any]:
        """Mean, standard deviation and step."""
        return [self.mu, self.sigma, self.q]

    def value_of(self, drawn: float) -> int:
        """Return the multiple of q that is nearest to the value."""
        return _quantised(super().value_of(drawn), self.q)


# Every expression by its name in the wire form.
KINDS: Mapping[str, type[Expression]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Choice,
            RandInt,
            Uniform,
            QUniform,
            LogUniform,
            QLogUniform,
            Normal,
            QNormal,
            LogNormal,
            QLogNormal,
        )
    }
)


def choice(*options: Any) -> Choice:
    """Return an expression for one of `options`, each equally likely.

    A single list, tuple or range gives the options.

    Raises:
        SweepError: no options, or one that is not JSON data.
    """
    if len(options) == 1 and isinstance(options[0], list | tuple | range):
        return Choice(tuple(options[0]))
    return Choice(tuple(options))


def randint(upper: int) -> RandInt:
    """Return an expression for a whole number in [0, upper)."""
    return RandInt(upper)


def uniform(min_value: float, max_value: float) -> Uniform:
    """Return an expression for a real number between the bounds."""
    return Uniform(min_value, max_value)


def quniform(min_value: float, max_value: float, q: int) -> QUniform:
    """Return an expression for ``round(uniform(min_value, max_value) / q) * q``."""
    return QUniform(min_value, max_value, q)


def loguniform(min_value: float, max_value: float) -> LogUniform:
    """Return an expression for ``exp(uniform(min_value, max_value))``."""
    return LogUniform(min_value, max_value)


def qloguniform(min_value: float, max_value: float, q: int) -> QLogUniform:
    """Return an expression for ``round(exp(uniform(min_value, max_value)) / q) * q``."""
    return QLogUniform(min_value, max_value, q)


def normal(mu: float, sigma: float) -> Normal:
    """Return an expression for a Gaussian number with mean mu and standard deviation sigma."""
    return Normal(mu, sigma)


def qnormal(mu: float, sigma: float, q: int) -> QNormal:
    """Return an expression for ``round(normal(mu, sigma) / q) * q``."""
    return QNormal(mu, sigma, q)


def lognormal(mu: float, sigma: float) -> LogNormal:
    """Return an expression for ``exp(normal(mu, sigma))``."""
    return LogNormal(mu, sigma)


def qlognormal(mu: float, sigma: float, q: int) -> QLogNormal:
    """Return an expression for ``round(exp(normal(mu, sigma)) / q) * q``."""
    return QLogNormal(mu, sigma, q)


def _check_numbers(name: str, **values: object) -> None:
    for argument, value in values.items():
        if not is_number(value):
            raise problem(
                "", f"{name}'s {argument} is {value!r}.", "Give a finite number, not text."
            )


def _check_step(name: str, q: object) -> None:
    if not is_whole(q, at_least=1):
        raise problem("", f"{name}'s q is {q!r}.", "Give a whole number of at least 1.")


def _check_exponent(name: str, exponent: float) -> None:
    if exponent > _MAX_EXPONENT:
        raise problem(
            "",
            f"{name} would draw numbers up to exp({exponent:g}), more than a float can hold.",
            "The arguments are natural logarithms: for values up to 0.1 write log(0.1) = -2.3.",
        )


def _quantised(value: float, q: int) -> int:
    return round(value / q) * q
