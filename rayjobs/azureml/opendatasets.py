"""``azureml.opendatasets.MNIST``: the four MNIST files, read from Azure's public storage.

Without access to the web, map the address to a folder that has the files: `rayjobs azureml map
https://azureopendatastorage.blob.core.windows.net/mnist/=FOLDER`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayjobs.core.errors import UsageError
from rayjobs.core.refusing import refuses
from rayjobs.datastore import Dataset

if TYPE_CHECKING:
    from rayjobs.datastore import FileDataset

ROOT = "https://azureopendatastorage.blob.core.windows.net/mnist"
_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


@refuses("read the files with MNIST.get_file_dataset()", "get_tabular_dataset")
class MNIST:
    """Images of handwritten digits."""

    @staticmethod
    def get_file_dataset(dataset_filter: str = "all", enable_telemetry: bool = True) -> FileDataset:
        """Return the gzipped files.

        Args:
            dataset_filter: ``train``, ``test`` or ``all``.
            enable_telemetry: Accepted but unused: nothing is collected.

        Raises:
            UsageError: the filter is unknown.
        """
        if dataset_filter not in ("all", *_FILES):
            raise UsageError(f"dataset_filter is {dataset_filter!r}; use train, test or all")
        wanted = [
            f"{ROOT}/{file}"
            for part, files in _FILES.items()
            if dataset_filter in ("all", part)
            for file in files
        ]
        found: FileDataset = Dataset.File.from_files(wanted)
        return found
