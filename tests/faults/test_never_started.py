"""A job with an unstartable program fails immediately on real Ray: not retried, not held."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.jobs.states import JobState
from rayjobs.spec.model import Container
from tests.support.containers import needs_containers
from tests.support.images import file, layer, oci_folder
from tests.support.jobs import Jobs

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), needs_containers]


@pytest.mark.parametrize("harm", ["missing", "foreign"])
def test_command_fails_once_if_the_image_shell_cannot_start(
    jobs: Jobs, tmp_path: Path, harm: str
) -> None:
    """Before, it counted as a lost host: tried three times, then held forever."""
    if harm == "missing":
        image, message = (
            tmp_path / "empty",
            "the image has no /bin/sh, which runs the job's command",
        )
        image.mkdir()
    else:
        message = "/bin/sh cannot be started: Exec format error"
        shell = layer([file("bin/sh", b"of another processor", mode=0o755)])
        image = oci_folder(tmp_path / "oci", [shell], tag="1")
    source = tmp_path / "source"
    source.mkdir()
    job = jobs.submit_folder(
        source, script=None, command="ls /", container=Container(image=str(image))
    )
    failed = jobs.wait(job, JobState.FAILED)
    assert failed.failure is not None
    assert failed.failure.failure_class is FailureClass.ENVIRONMENT
    assert failed.failure.is_permanent
    assert message in failed.failure.message
    assert failed.attempt == 1
    assert failed.held is None
