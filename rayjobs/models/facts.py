"""Facts about a model that the caller of a registration gives, and the draft made with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.jobs.records import ModelDraft, ModelFile, StoredFile
from rayjobs.models.names import texts


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about a future version of a model, for users and programs.

    Attributes:
        description: None keeps that of an existing version.
        tags: Added to those of an existing version.
        aliases: Moved from the versions that have them.
        resources: The resources with which Azure ML would deploy it; only the lineage keeps them.
    """

    description: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    framework: str = ""
    framework_version: str = ""
    resources: str = ""


NO_FACTS = ModelFacts()


def draft_of(
    facts: ModelFacts,
    *,
    name: str,
    path: str,
    digest: str,
    files: Sequence[ModelFile],
    sources: Sequence[StoredFile] = (),
    lineage: Mapping[str, Any],
    user: str,
) -> ModelDraft:
    """Return the draft of a version, with the facts that the caller of the registration gave.

    The lineage gets their `resources`.
    """
    return ModelDraft(
        name=name,
        path=path,
        digest=digest,
        files=tuple(files),
        sources=tuple(sources),
        lineage={**lineage, **({"resources": facts.resources} if facts.resources else {})},
        user=user,
        framework=facts.framework,
        framework_version=facts.framework_version,
        description=facts.description,
        tags=texts(facts.tags),
        properties=texts(facts.properties),
        aliases=tuple(facts.aliases),
    )


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
