"""Registers models as programs do, with every fact that the registry takes."""

from __future__ import annotations

from typing import Any

from rayjobs import Workspace
from rayjobs.api.model import Model, opened_of
from rayjobs.models import registry
from rayjobs.workspace.folder import OpenWorkspace


def register(workspace: Workspace | OpenWorkspace, **facts: Any) -> Model:
    """Register a run's files; see `rayjobs.models.registry.register`."""
    return Model.of(workspace, registry.register(opened_of(workspace), **facts))


def register_best(workspace: Workspace | OpenWorkspace, **facts: Any) -> Model:
    """Register a sweep's best run; see `rayjobs.models.registry.register_best`."""
    return Model.of(workspace, registry.register_best(opened_of(workspace), **facts))


def find(workspace: Workspace | OpenWorkspace, text: str) -> Model:
    """Find a version; see `rayjobs.models.registry.find`."""
    return Model.of(workspace, registry.find(opened_of(workspace).store, text))
