"""The interfaces of samplers and samplings."""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Protocol

from rayjobs.core.errors import Problem
from rayjobs.core.numbers import is_whole
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.tuning.errors import SweepError, joined
from rayjobs.tuning.goal import PrimaryMetricGoal
from rayjobs.tuning.space import SearchSpace, parse_space
from rayjobs.tuning.trials import TrialRecord


class Sampler(Protocol):
    """Chooses parameters. All its state can be rebuilt from the trial table.

    Not thread-safe: one driver owns it.
    """

    def suggest(self, trial_number: int) -> dict[str, Any] | None:
        """Return the parameters of a trial, None if there is nothing left to try.

        A second call with the same number returns the same parameters.
        """
        ...

    def tell(self, trial_number: int, value: float | None) -> None:
        """Learn the result of a trial; None if it has none. A repeated call changes nothing."""
        ...

    def replay(self, records: Iterable[TrialRecord]) -> None:
        """Learn every recorded trial, final or not, that is still unknown.

        Afterwards, a fresh sampler suggests what the sampler behind the records would have
        suggested.
        """
        ...


@dataclass(frozen=True)
class Sampling(ABC):
    """How parameters are chosen: immutable, comparable, plain data through `to_dict`.

    Attributes:
        space: The search space.
        properties: ``seed`` (an integer) makes the choice repeatable; without it, one is drawn here
            once and recorded.
        is_seed_drawn: Whether the seed was drawn here because none was given.

    Raises:
        SweepError: the space or the properties are wrong, or the sampling cannot use an
            expression in the space.
    """

    kind: ClassVar[str]
    learns: ClassVar[bool] = False  # whether results change the suggestions
    known_properties: ClassVar[tuple[str, ...]] = ("seed",)
    draws_seed: ClassVar[bool] = False  # True in an instance that has drawn its seed

    space: SearchSpace
    properties: Mapping[str, Any] = field(default_factory=dict)
    is_seed_drawn: bool = field(default=False, compare=False, repr=False)

    def __init__(
        self,
        parameter_space: Mapping[str, Any],
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        settings = dict(properties or {})
        problems: list[Problem] = []
        for name in settings:
            if name not in self.known_properties:
                problems.append(
                    Problem(
                        f"properties.{name}",
                        f"{type(self).__name__} has no property {name!r}.",
                        f"Its properties are {', '.join(self.known_properties)}.",
                    )
                )
        seed = settings.get("seed")
        object.__setattr__(self, "is_seed_drawn", seed is None)
        if seed is None:
            settings["seed"] = secrets.randbits(31)
            object.__setattr__(self, "draws_seed", True)
        elif not is_whole(seed, at_least=0) or seed >= 2**63:
            problems.append(
                Problem("properties.seed", f"the seed is {seed!r}.", "Give a whole number ≥ 0.")
            )
        try:
            space = parse_space(parameter_space)
        except SweepError as found:
            problems.extend(joined("parameters", found))
        else:
            object.__setattr__(self, "space", space)
            problems.extend(joined("parameters", SweepError(problems=self._misfits(space))))
        problems.extend(self._bad_properties(settings))
        if problems:
            raise SweepError(problems=problems)
        object.__setattr__(self, "properties", settings)

    @property
    def seed(self) -> int:
        """The seed, given or drawn."""
        return int(self.properties["seed"])

    @property
    def size(self) -> int | None:
        """The number of different trials; None if it is unbounded."""
        return None

    @abstractmethod
    def sampler(self, goal: PrimaryMetricGoal) -> Sampler:
        """Return a fresh sampler without any trials."""

    def advice(self, total: int, concurrent: int) -> tuple[str, ...]:
        """Return allowed but unwise settings among these limits, one sentence each."""
        return ()

    def to_json(self) -> str:
        """Return the sampling as JSON text."""
        return json.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data that `parse_sampling` reads back."""
        return {"type": self.kind, "parameters": self.space.to_wire(), **self.properties}

    def __hash__(self) -> int:
        return hash((self.kind, self.space, self.seed))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.space, dict(self.properties))

    def _misfits(self, space: SearchSpace) -> list[Problem]:
        return []

    def _bad_properties(self, properties: Mapping[str, Any]) -> list[Problem]:
        return []
