"""The exit codes that users script against."""

from __future__ import annotations

import pytest

from rayjobs.cli.exits import Exit, of_job
from rayjobs.core import errors
from rayjobs.core.failures import FailureClass
from tests.unit.cli.conftest import Queue


def test_codes_are_the_documented_ones() -> None:
    assert [(code.name, int(code)) for code in Exit] == [
        ("DONE", 0),
        ("FAILED", 1),
        ("USAGE", 2),
        ("NOT_FOUND", 3),
        ("NEVER_FITS", 4),
        ("UNREACHABLE", 5),
        ("TIME_LIMIT", 124),
        ("INTERRUPTED", 130),
        ("PIPE_CLOSED", 141),
    ]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.RayjobsError, Exit.FAILED),
        (errors.SpecError, Exit.USAGE),
        (errors.UsageError, Exit.USAGE),
        (errors.SnapshotError, Exit.USAGE),
        (errors.NotFoundError, Exit.NOT_FOUND),
        (errors.CannotBePlacedError, Exit.NEVER_FITS),
        (errors.StoreFullError, Exit.UNREACHABLE),
        (errors.StoreVersionError, Exit.UNREACHABLE),
        (errors.TargetError, Exit.UNREACHABLE),
        (errors.JobFailedError, Exit.FAILED),
    ],
)
def test_errors_carry_the_codes(kind: type[errors.RayjobsError], code: Exit) -> None:
    assert kind.exit_code == code


def test_a_job_ends_with_its_code(queue: Queue) -> None:
    assert of_job(queue.completed()) is Exit.DONE
    assert of_job(queue.failed()) is Exit.FAILED
    assert of_job(queue.failed(FailureClass.TIME_LIMIT)) is Exit.TIME_LIMIT
    canceled = queue.submit()
    queue.workspace.store.request_cancel(canceled.id)
    assert of_job(queue.workspace.store.job(canceled.id)) is Exit.FAILED
