"""The registry of submitters for configuration objects; other packages register theirs here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from rayjobs.core.errors import UsageError

if TYPE_CHECKING:
    from rayjobs.api.experiment import Experiment
    from rayjobs.injob.run import Run


class Submitter(Protocol):
    """Submits one configuration object under an experiment."""

    def __call__(
        self,
        experiment: Experiment,
        config: Any,
        *,
        tags: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> Run:
        """Submit `config`, and return the run's handle."""
        ...


_submitters: dict[type, Submitter | str] = {}


def register(config_class: type, submitter: Submitter | str) -> None:
    """Make `Experiment.submit` accept objects of a class (and of its subclasses).

    Args:
        submitter: The function, or ``module:function``, which is imported at the first submit.
    """
    _submitters[config_class] = submitter


def submitter_of(config: object) -> Submitter:
    """Return the submitter for the nearest class of an object.

    Raises:
        UsageError: no submitter is registered for it.
    """
    for kind in type(config).__mro__:
        if kind in _submitters:
            found = _submitters[kind]
            if isinstance(found, str):
                module, _, name = found.partition(":")
                found = getattr(importlib.import_module(module), name)
            return cast(Submitter, found)
    known = ", ".join(sorted(kind.__name__ for kind in _submitters))
    raise UsageError(f"a {type(config).__name__} cannot be submitted; give one of: {known}")
