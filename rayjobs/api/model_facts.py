"""What a version of a model says of itself: the properties of ``Model``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from rayjobs.core.errors import UsageError
from rayjobs.jobs.records import ModelVersion
from rayjobs.models import uploaded

if TYPE_CHECKING:
    from rayjobs.api.run import JobRun
    from rayjobs.workspace.folder import OpenWorkspace


class Framework:
    """Azure ML's names of frameworks, for `model_framework`."""

    CUSTOM = "Custom"
    TENSORFLOW = "TensorFlow"
    SCIKITLEARN = "ScikitLearn"
    ONNX = "Onnx"
    TFKERAS = "TfKeras"
    PYTORCH = "PyTorch"
    MULTI = "Multi"


def _refused(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"Model.{name} is not supported: rayjobs trains and registers models, and serves none. "
            f"Serve the files that Model.download gives"
        )

    refuse.__name__ = name
    refuse.__doc__ = "Not supported: rayjobs serves no models."
    return staticmethod(refuse)


class ModelFacts:
    """The record of one version, read by name."""

    Framework = Framework
    deploy = _refused("deploy")
    package = _refused("package")
    profile = _refused("profile")
    print_configuration = _refused("print_configuration")
    get_sas_urls = _refused("get_sas_urls")

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
    def run_id(self) -> str | None:
        """The run that produced it; None for one that a user uploaded."""
        return self._kept.run or None

    @property
    def run(self) -> JobRun | None:
        """The run that produced it; None for one that a user uploaded."""
        from rayjobs.api.workspace import Workspace

        if self.run_id is None:
            return None

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
    def lineage_text(self) -> str:
        """Where it comes from, in a few words."""
        if uploaded.UPLOADED in self._kept.lineage:
            return uploaded.sentence(self._kept.lineage)
        return f"run {self._kept.run}"

    @property
    def resource_configuration(self) -> str:
        """What it was said to need where it is deployed; "" if nothing was said."""
        return str(self._kept.lineage.get("resources", ""))

    @property
    def record(self) -> ModelVersion:
        """All that is kept."""
        return self._kept


def dataset_rows(datasets: Any) -> list[dict[str, Any]]:
    """Return rows of a lineage's ``data`` for pairs of purpose and registered dataset.

    Raises:
        UsageError: a dataset is not registered, or a pair is not one.
    """
    rows = []
    for pair in datasets or ():
        try:
            purpose, dataset = pair
            name, version = dataset.name, dataset.version
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{pair!r:.120} is not a pair of purpose and dataset; give [('training', dataset)]"
            ) from error
        if not name:
            raise UsageError(
                f"the dataset for {purpose!r} is not registered, so a lineage cannot name it; "
                f"register it first"
            )
        title = f"{name}:{version}"
        rows.append(
            {
                "name": str(purpose),
                "source": f"dataset:{title}",
                "version": title,
                "dataset": title,
                "dataset_id": dataset.id,
            }
        )
    return rows


def opened_of(workspace: Any) -> OpenWorkspace:
    """Return the open files of a workspace, given as either."""
    opened: OpenWorkspace = getattr(workspace, "opened", workspace)
    return opened
