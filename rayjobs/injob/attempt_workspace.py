"""A job's experiment and workspace for scripts whose environment lacks rayjobs."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from rayjobs.injob import run_calls
from rayjobs.injob.channel import Channel
from rayjobs.injob.logging_run import RunNotSupportedError
from rayjobs.injob.run_calls import Request, Value


class RunExperiment:
    """The experiment as a script sees it: its name and its workspace."""

    def __init__(self, name: str, workspace: Any) -> None:
        """Create an experiment; `workspace` is a workspace or a function that returns one."""
        self.name = name
        self._workspace = workspace

    @property
    def workspace(self) -> Any:
        """Its workspace."""
        if callable(self._workspace):
            self._workspace = self._workspace()
        return self._workspace

    def __repr__(self) -> str:
        """Return the experiment's name."""
        return "Experiment(name=%r)" % self.name


class RunWorkspace:
    """The workspace of a job whose Python lacks rayjobs, read with the standard library.

    Where rayjobs can be imported, `Run.experiment.workspace` is a `rayjobs.Workspace` instead.
    """

    subscription_id = "local"
    resource_group = "local"
    location = "local"

    def __init__(self, name: str, channel: Optional[Channel] = None) -> None:
        """Read the workspace `name` through a channel; with None, only its name is known."""
        self.name = name
        self._channel = channel

    def _call(self, request: Request[Value]) -> Value:
        if self._channel is None:
            raise RunNotSupportedError(
                "this process has no token of a job's attempt, so it cannot reach a workspace; "
                "outside a job, open one with Workspace.from_config()"
            )
        return self._channel.call(request)

    def _names(self, of: str) -> Dict[str, Dict[str, Any]]:
        return {one.name: one.to_json() for one in self._call(run_calls.Records(of))}

    @property
    def datastores(self) -> Dict[str, Dict[str, Any]]:
        """Its datastores: name → ``{"name", "kind"}``."""
        return self._names("datastores")

    @property
    def datasets(self) -> Dict[str, Dict[str, Any]]:
        """The newest version of each dataset: name → ``{"name", "version", "id", "kind"}``."""
        return self._names("datasets")

    @property
    def models(self) -> Dict[str, Dict[str, Any]]:
        """The newest version of each model: name → ``{"name", "version", "run", "tags"}``."""
        return self._names("models")

    @property
    def experiments(self) -> Dict[str, RunExperiment]:
        """The experiments that have runs, by name."""
        return {name: RunExperiment(name, self) for name in self._names("experiments")}

    def download_dataset(
        self, name: str, target: Any, version: Optional[int] = None, id: Optional[str] = None
    ) -> str:
        """Write the files of a file dataset to the new folder `target`; return it.

        Raises:
            ChannelError: there is no such dataset, or it is a table.
            FileExistsError: `target` exists.
        """
        return self._taken(self._call(run_calls.FetchDataset(name, version, id)), target)

    def download_model(self, name: str, target: Any, version: Optional[int] = None) -> str:
        """Write the files of a model to the new folder `target`; return it.

        Raises:
            ChannelError: there is no such model.
            FileExistsError: `target` exists.
        """
        return self._taken(self._call(run_calls.FetchModel(name, version)), target)

    def _taken(self, folder: str, target: Any) -> str:
        path: str = os.path.abspath(os.fspath(target))
        if os.path.exists(path):
            raise FileExistsError("%s exists; name a new folder" % path)
        if self._channel is not None:
            self._channel.take(folder, path)
        return path
