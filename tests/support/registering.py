"""Registers models as programs do, with all facts that the registry accepts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rayjobs import Workspace
from rayjobs.api.model import Model, opened_of
from rayjobs.models import registry
from rayjobs.models.facts import ModelFacts, RunChoice
from rayjobs.workspace.folder import OpenWorkspace


def register(
    workspace: Workspace | OpenWorkspace, *, primary_metric: str | None = None, **options: Any
) -> Model:
    """Register a run's files, with the facts as options; see `rayjobs.models.registry.register`."""
    names = {one.name for one in fields(ModelFacts)} & set(options)
    facts = ModelFacts(**{name: options.pop(name) for name in names})
    choice = RunChoice(metric=primary_metric) if primary_metric else None
    kept = registry.register(opened_of(workspace), facts=facts, choice=choice, **options)
    return Model.of(workspace, kept)


def register_best(
    workspace: Workspace | OpenWorkspace, *, name: str, run: str, choice: RunChoice
) -> Model:
    """Register a sweep's best run as a driver of sweeps does."""
    opened = opened_of(workspace)
    return Model.of(
        workspace, registry.register(opened, name=name, run=run, path="outputs", choice=choice)
    )


def find(workspace: Workspace | OpenWorkspace, text: str) -> Model:
    """Find a version; see `rayjobs.models.registry.find`."""
    return Model.of(workspace, registry.find(opened_of(workspace).store, text))
