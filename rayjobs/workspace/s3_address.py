"""The S3 address of a workspace's files, without credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.messages import Message, MessageError

if TYPE_CHECKING:
    from rayjobs.datastore.catalogue import DatastoreRecord

SCHEME = "s3"
DATASTORES = "datastores"


@dataclass(frozen=True)
class S3Address(Message):
    """The bucket and prefix of a workspace's blobs.

    Attributes:
        endpoint: The server's address; empty for AWS.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""

    @classmethod
    def parsed(
        cls, url: str, *, endpoint: str = "", region: str = "", profile: str = ""
    ) -> S3Address:
        """Return the address that a user gave as ``s3://BUCKET[/PREFIX]``.

        Raises:
            UsageError: it is not valid.
        """
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        bad = parts.scheme != SCHEME or not parts.netloc or parts.query or "@" in parts.netloc
        if bad or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
            raise UsageError(
                f"the address of the files {url!r} is not valid; write s3://BUCKET/PREFIX, and "
                f"--endpoint-url for a server other than AWS. Keys are read from the usual places: "
                f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
            )
        server = urlsplit(endpoint)
        if endpoint and (
            server.scheme not in ("http", "https") or not server.hostname or "@" in server.netloc
        ):
            raise UsageError(
                f"--endpoint-url {endpoint!r} is not valid; write http://HOST:PORT or https://HOST"
            )
        return cls(parts.netloc, prefix, endpoint.rstrip("/"), region, profile)

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Return the address in a workspace's record, of any version.

        Raises:
            MessageError: it is not an address.
        """
        if not isinstance(values, Mapping):
            raise MessageError(f"an S3 address is one JSON object, not {values!r:.60}")
        return cls(**{name: str(values.get(name, "")) for name in cls.__dataclass_fields__})

    def to_json(self) -> dict[str, str]:
        """Return the address in the form of a workspace's record."""
        return {name: value for name, value in vars(self).items() if value}

    @property
    def url(self) -> str:
        """``s3://BUCKET/PREFIX``."""
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def where(self) -> str:
        """The address in a form for messages."""
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url

    def is_same_location(self, other: S3Address) -> bool:
        """Whether both are the same location, regardless of the profile."""
        mine = (self.bucket, self.prefix, self.endpoint)
        return mine == (other.bucket, other.prefix, other.endpoint)

    def record(self, name: str, below: str = "") -> DatastoreRecord:
        """Return the record of a datastore in a folder below the workspace's prefix."""
        from rayjobs.datastore.catalogue import DatastoreRecord

        prefix = "/".join(part for part in (self.prefix, below) if part)
        values = {**self.to_json(), "prefix": prefix}
        return DatastoreRecord(name, "s3", {key: one for key, one in values.items() if one})
