"""The S3 server for the tests in this folder."""

from tests.storage.server import s3_server

__all__ = ["s3_server"]
