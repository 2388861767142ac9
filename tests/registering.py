"""Registers models as programs do, with every fact that the registry takes."""

from __future__ import annotations

from typing import Any

from rayjobs import Workspace
from rayjobs.api.model import Model
from rayjobs.models import registry


def register(workspace: Workspace, **facts: Any) -> Model:
    """Register a run's files; see `rayjobs.models.registry.register`."""
    return Model.of(workspace, registry.register(workspace.opened, **facts))


def register_best(workspace: Workspace, **facts: Any) -> Model:
    """Register a sweep's best run; see `rayjobs.models.registry.register_best`."""
    return Model.of(workspace, registry.register_best(workspace.opened, **facts))


def find(workspace: Workspace, text: str) -> Model:
    """Find a version; see `rayjobs.models.registry.find`."""
    return Model.of(workspace, registry.find(workspace.store, text))
