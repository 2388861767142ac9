"""What a version of a model says of itself: the properties of ``Model``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from rayjobs.jobs.records import ModelVersion

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun
    from rayjobs.workspace.folder import OpenWorkspace


class ModelFacts:
    """The record of one version, read by name."""

    workspace: Any
    _kept: ModelVersion

    @property
    def name(self) -> str:
        """Its name."""
        return self._kept.name

    @property
    def version(self) -> int:
        """Its version, from 1."""
        return self._kept.version

    @property
    def id(self) -> str:
        """``name:version``."""
        return f"{self.name}:{self.version}"

    @property
    def url(self) -> str:
        """Its address within rayjobs."""
        return f"rayjobs://{opened_of(self.workspace).name}/models/{self.name}/{self.version}"

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self._kept.tags)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties, which are written once."""
        return dict(self._kept.properties)

    @property
    def description(self) -> str:
        """What people should know."""
        return self._kept.description

    @property
    def model_framework(self) -> str:
        """The framework that was named."""
        return self._kept.framework

    @property
    def model_framework_version(self) -> str:
        """Its version."""
        return self._kept.framework_version

    @property
    def created_time(self) -> datetime:
        """When it was registered (UTC)."""
        return self._kept.created_at

    @property
    def created_by(self) -> str:
        """Who registered it."""
        return self._kept.created_by

    @property
    def run_id(self) -> str:
        """The run that produced it."""
        return self._kept.run

    @property
    def run(self) -> JobRun:
        """The run that produced it."""
        from rayjobs.api.workspace import Workspace

        workspace = self.workspace
        if not isinstance(workspace, Workspace):
            workspace = Workspace(path=workspace.path)
        return workspace.get_run(self.run_id)

    @property
    def aliases(self) -> list[str]:
        """Names that point to this version now."""
        return [*self._kept.aliases]

    @property
    def lineage(self) -> dict[str, Any]:
        """Where it comes from, see docs/guides/models.md."""
        return dict(self._kept.lineage)

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """What the run read."""
        return [dict(one) for one in self._kept.lineage.get("data", ())]

    @property
    def record(self) -> ModelVersion:
        """All that is kept."""
        return self._kept


def opened_of(workspace: Any) -> OpenWorkspace:
    """Return the open files of a workspace, given as either."""
    opened: OpenWorkspace = getattr(workspace, "opened", workspace)
    return opened
