"""A file dataset brought to this machine for the length of a `with` block.

Source: Azure ML SDK v1, `azureml.data.FileDataset.mount` and its `MountContext`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rayjobs.datastore.reading import default_cache_root

if TYPE_CHECKING:
    from rayjobs.datastore.datasets import FileDataset
    from rayjobs.datastore.materialise import Materialised


class LocalMount:
    """Mounted, linked or (without FUSE) downloaded between `start` and `stop`."""

    def __init__(self, dataset: FileDataset, mount_point: str | Path | None) -> None:
        self._dataset = dataset
        self._mount_point = Path(mount_point).expanduser() if mount_point is not None else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held: Materialised | None = None

    @property
    def mount_point(self) -> str:
        """Where the files are; "" before `start`."""
        if self._held is None:
            return str(self._mount_point or "")
        return self._held.path

    def start(self) -> None:
        """Bring the files.

        Raises:
            DatastoreError: what keeps them from being brought.
        """
        from rayjobs.datastore.inputs import DataInput
        from rayjobs.datastore.materialise import materialise

        if self._held is not None:
            return
        source = DataInput(
            name="files",
            mode="mount",
            records=tuple(self._dataset.records.values()),
            manifest=self._dataset.manifest,
            path_on_compute=str(self._mount_point.absolute()) if self._mount_point else None,
        )
        self._folder = tempfile.TemporaryDirectory(prefix="dataset-")
        try:
            self._held = materialise(
                source, None, default_cache_root(), into=Path(self._folder.name)
            )
        except BaseException:
            self._folder.cleanup()
            raise

    def stop(self) -> None:
        """Take the files away again."""
        from rayjobs.datastore.materialise import release

        if self._held is not None:
            release(self._held)
        if self._folder is not None:
            self._folder.cleanup()
        self._held = self._folder = None

    def __enter__(self) -> str:
        self.start()
        return self.mount_point

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
