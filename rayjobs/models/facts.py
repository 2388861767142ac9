"""Facts about a model that the caller of a registration gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from rayjobs.injob.lazydataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a future version of a model, for users and programs.

    Attributes:
        description: None keeps that of an existing version.
        tags: Added to those of an existing version.
        aliases: Moved from the versions that have them.
        resources: The resources with which Azure ML would deploy it; recorded but unused.
    """

    description: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    framework: str = ""
    framework_version: str = ""
    resources: str = ""


NO_FACTS = ModelFacts()


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Why a run's model was chosen.

    Attributes:
        metric: A metric that must be finite; the lineage keeps it with its value.
        value: The value for which the run was chosen; None means the last one.
        configuration: Parameters that the run was given, for the lineage.
        sweep: Id of the sweep that chose the run; the model then belongs to the run's user.
    """

    metric: str
    value: float | None = None
    configuration: Mapping[str, Any] | None = None
    sweep: str | None = None
