"""The datastore `photos` of tests with real jobs: a prefix in the S3 server's bucket."""

from __future__ import annotations

from typing import Any

from rayjobs.datastore import Datastore
from rayjobs.workspace.folder import OpenWorkspace
from tests.storage.server import S3Server


def register_photos(
    workspace: OpenWorkspace,
    server: S3Server,
    profile: str,
    *,
    endpoint: str | None = None,
    **settings: Any,
) -> Datastore:
    """Register the datastore, and return it.

    Args:
        profile: Names the credentials.
        endpoint: The address of a proxy in front of the server; None: the server's own.
        settings: The timeouts and retries of its clients.
    """
    given = server.record().settings
    return Datastore.register_s3(
        workspace,
        "photos",
        given["bucket"],
        prefix=given["prefix"],
        endpoint=endpoint or server.endpoint,
        profile=profile,
        **settings,
    )
