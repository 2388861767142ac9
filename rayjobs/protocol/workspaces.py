"""What the target actor tells nodes that do not share its disk about a workspace."""

from __future__ import annotations

from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message
from rayjobs.workspace.s3_address import S3Address


@dataclass(frozen=True)
class WorkspaceFacts(Message):
    """The answer to the call ``about``.

    Attributes:
        id: Id of the workspace.
        blobs: Where its files are in S3; None: in its folder.
    """

    id: str
    name: str
    blobs: S3Address | None = None
