"""Credentials of the tests' S3 server, where a running target finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.server import ACCESS_KEY, SECRET_KEY

PROFILE = "rayjobs-tests"


@pytest.fixture
def aws_profile(session_root: Path) -> Iterator[str]:
    """A profile in the test run's own AWS file, which all processes of the run use."""
    path = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
    assert path.is_relative_to(session_root)
    path.write_text(
        f"[{PROFILE}]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    yield PROFILE
