"""``azureml.tensorboard``: TensorBoard for the event files of runs, and metrics as event files.

Source: azureml-tensorboard 1.62.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rayjobs.api.tensorboard import Server
from rayjobs.core.errors import UsageError

_EVENTS = "events.out.tfevents"


class Tensorboard:
    """A TensorBoard server for the event files that runs have stored."""

    LOGS_ARTIFACT_PREFIX = "logs/"
    """Where Azure ML looks for event files; rayjobs considers all stored files."""

    def __init__(
        self,
        runs: Any,
        local_root: str | Path | None = None,
        port: int = 6006,
        use_display_name: bool = False,
    ) -> None:
        """Store the arguments; `start` fetches the event files.

        Args:
            runs: A run, or several.
            local_root: Folder for the files; None means a temporary one, which `stop` removes.
            use_display_name: Show runs by their display names; runs with the same name by name and
                id.
        """
        self._use_display_name = use_display_name
        self._runs = list(runs) if isinstance(runs, (list, tuple)) else [runs]
        self._root = None if local_root is None else Path(local_root)
        self._temporary: str | None = None
        self._port = port
        self._server: Server | None = None

    def start(self, start_browser: bool = False) -> str:
        """Fetch the event files and start the server; return its address.

        Raises:
            UsageError: TensorBoard is not installed here, or does not start.
        """
        _check_installed()
        root = self._root
        if root is None:
            self._temporary = tempfile.mkdtemp(prefix="rayjobs-tensorboard-")
            root = Path(self._temporary)
        for run, folder in zip(self._runs, self._folders(), strict=True):
            for name in run.get_file_names():
                if _EVENTS in name.rpartition("/")[2]:
                    target = root / folder / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    run.download_file(name, str(target))
        try:
            self._server = Server(root, self._port)
        except UsageError:
            self.stop()  # removes the temporary folder
            raise
        print(self._server.url)  # noqa: T201 - as Azure ML's does
        return self._server.url

    def _folders(self) -> list[str]:
        """Return the name under which TensorBoard shows each run."""
        if not self._use_display_name:
            return [run.id for run in self._runs]
        shown = [(run.display_name or run.id).replace("/", "_") for run in self._runs]
        return [
            name if shown.count(name) == 1 else f"{name}_{run.id}"
            for name, run in zip(shown, self._runs, strict=True)
        ]

    def stop(self) -> None:
        """Stop the server, and remove the temporary folder if there is one."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary)
            self._temporary = None


def export_to_tensorboard(
    run_data: Any, logdir: str | Path, logger: Any = None, recursive: bool = True
) -> None:
    """Write the metrics of runs as TensorBoard event files, into one folder per run.

    Args:
        run_data: A run, or several.
        logdir: The folder.
        recursive: Also write the metrics of their children.

    Raises:
        UsageError: TensorBoard is not installed here.
    """
    _check_installed()
    from torch.utils.tensorboard import SummaryWriter

    runs = list(run_data) if isinstance(run_data, (list, tuple)) else [run_data]
    for run in _with_children(runs, recursive=recursive):
        with SummaryWriter(log_dir=os.fspath(Path(logdir) / run.id)) as writer:
            for name, value in run.get_metrics().items():
                for step, number in enumerate(_numbers(value)):
                    writer.add_scalar(name, number, step)


def _with_children(runs: Sequence[Any], *, recursive: bool) -> Iterable[Any]:
    for run in runs:
        yield run
        if recursive:
            yield from run.get_children(recursive=True)


def _numbers(value: Any) -> list[float]:
    values = value if isinstance(value, list) else [value]
    return [
        float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)
    ]


def _check_installed() -> None:
    import importlib.util

    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed here; install it: pip install tensorboard")
