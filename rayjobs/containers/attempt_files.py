"""The files of an attempt that name its image, for later agents, other nodes and prunes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from rayjobs.core.files import write_atomic
from rayjobs.core.paths import AttemptPaths
from rayjobs.injob import record_files
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message


@dataclass(frozen=True)
class UsedImage(Message):
    """The content of ``image.json``: the image that an attempt uses on its node.

    It is written once the image is known, so that a prune keeps it, and again once it is ready.

    Attributes:
        key: Its name in the node's cache; None: a folder that is used in place.
        root: Its root file system; None: it is not ready yet.
        variables: Its own environment variables.
        is_private: No other attempt uses `root`.
    """

    key: str | None
    root: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    is_private: bool = False

    @staticmethod
    def read(paths: AttemptPaths) -> UsedImage | None:
        """Return the image that an attempt uses; None if it uses none.

        Raises:
            MessageError, OSError: see `record_files.read_message`.
        """
        return record_files.read_message(str(paths.root), paths.image.name, UsedImage)

    def write(self, paths: AttemptPaths) -> None:
        """Write the file atomically."""
        write_atomic(paths.image, json.dumps(self.to_json()))


@dataclass(frozen=True)
class MeantImage(Message):
    """The image that a name means on the job's first node, and therefore on all of its nodes.

    The first node stores it with the job as ``azureml-setup/image.json``.

    Attributes:
        digest: Digest of the image; None if not known yet.
        pinned: Its name with its digest in the registry; None if it comes from elsewhere.
    """

    digest: str | None = None
    pinned: str | None = None
