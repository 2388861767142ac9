"""Random and grid search as Ray Tune searchers, built on its variant generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.variant_generator import generate_variants

from rayjobs.tuning.expressions import Choice
from rayjobs.tuning.space import SearchSpace, stripped
from rayjobs.tuning.tune.domains import draw


class _Variants(Searcher):
    """A searcher that learns nothing: its suggestions depend only on a trial's number."""

    def adopt(self, trial_id: str, parameters: Mapping[str, Any]) -> None:
        """Ignore earlier suggestions, which have no effect."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn nothing."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the trial table has the whole state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class RandomSearch(_Variants):
    """Draws each trial independently.

    Each parameter has its own generator, seeded by seed, number and key: trials may be requested in
    any order and again after a restart, and adding a parameter does not change the values of the
    others.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__()
        self._space = space
        self._seed = seed

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """Return the trial's parameters."""
        return {
            key: draw(expression, f"{self._seed}/{trial_id}/{stripped(key)}")
            for key, expression in self._space.items()
        }


class GridSearch(_Variants):
    """Iterates over Tune's grid, the last parameter fastest; the n-th trial is the n-th point."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__()
        self._axes: dict[str, list[Any]] = {}
        for key, expression in space.items():
            assert isinstance(expression, Choice)
            self._axes[key] = expression.different
        # Tune sorts its grid by name and varies the first one fastest, so names are reversed.
        self._names = {
            key: f"p{len(self._axes) - position:06d}" for position, key in enumerate(self._axes)
        }
        grid = {
            self._names[key]: tune.grid_search(list(range(len(options))))
            for key, options in self._axes.items()
        }
        self._rest: Iterator[tuple[Any, Mapping[str, Any]]] = iter(generate_variants(grid))
        self._points: list[dict[str, Any]] = []

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the point, or `Searcher.FINISHED` past the last one."""
        number = int(trial_id)
        while len(self._points) <= number:
            following = next(self._rest, None)
            if following is None:
                return str(Searcher.FINISHED)
            _, indices = following
            self._points.append(
                {key: options[indices[self._names[key]]] for key, options in self._axes.items()}
            )
        return dict(self._points[number])
