"""A file dataset's files below a folder of this machine, while a context is active.

Source: Azure ML SDK v1, `azureml.data.FileDataset.mount` and `MountContext`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.datastore.cache_root import default_cache_root
from rayjobs.datastore.data_input import DataInput

if TYPE_CHECKING:
    from rayjobs.datastore.materialise import Materialised
    from rayjobs.datastore.reading import HasFiles


class LocalMount:
    """Files that are mounted, linked or (without FUSE) downloaded from `start` to `stop`."""

    def __init__(self, dataset: HasFiles, mount_point: str | Path | None) -> None:
        self._dataset = dataset
        self._mount_point = Path(mount_point).expanduser() if mount_point is not None else None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held: Materialised | None = None

    @property
    def mount_point(self) -> str:
        """The folder of the files; "" before `start`."""
        if self._held is None:
            return str(self._mount_point or "")
        return self._held.path

    def start(self) -> None:
        """Mount, link or download the files.

        Raises:
            DatastoreError: the files cannot be provided.
        """
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
            self._held = materialise(source, default_cache_root(), into=Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise

    def stop(self) -> None:
        """Remove the files again."""
        from rayjobs.datastore.materialise import release

        if self._held is not None:
            release(self._held)
        if self._folder is not None:
            self._folder.cleanup()
        self._held = self._folder = None

    def __enter__(self) -> str:
        self.start()
        return self.mount_point

    def __exit__(self, *_error: object) -> None:
        self.stop()
