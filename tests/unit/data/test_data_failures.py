"""Only an attempt that failed because of its data is reported as a data failure."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rayjobs.core.failures import FailureClass
from rayjobs.jobs.data_facts import DataFacts, Trouble
from rayjobs.jobs.rootcause import diagnose
from tests.unit.jobs.test_rootcause import rank_record, record

PATH = "/scratch/a1/inputs/pets"
UNREADABLE = f"""Traceback (most recent call last):
  File "train.py", line 4, in <module>
    open("{PATH}/1.png", "rb").read()
OSError: [Errno 5] Input/output error: '{PATH}/1.png'
"""
WRAPPED = (
    UNREADABLE
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 6, in <module>
    raise RuntimeError("no batch")
RuntimeError: no batch
"""
)
OWN_FAULT = """Traceback (most recent call last):
  File "train.py", line 4, in <module>
    1 / 0
ZeroDivisionError: division by zero
"""
TROUBLE = Trouble("pets", "s3://bucket at http://here did not answer")


FAILED = record("failed", rank_record(exit_code=1))


def facts(*, mounted: bool = True, trouble: bool = True) -> DataFacts:
    return DataFacts(
        mounted=("pets",) if mounted else (),
        paths=(PATH,),
        troubles=(TROUBLE,) if trouble else (),
    )


@pytest.mark.parametrize(
    ("log", "known"),
    [
        (UNREADABLE, facts()),
        (UNREADABLE, facts(trouble=False)),
        (UNREADABLE, facts(mounted=False, trouble=False)),
        (WRAPPED, facts()),
        ("OSError: [Errno 107] Transport endpoint is not connected\n", facts(trouble=False)),
    ],
    ids=["known trouble", "mounted", "path in the log", "another error on top", "mount lost"],
)
def test_unreadable_data_is_the_cause(log: str, known: DataFacts) -> None:
    outcome, failure = diagnose([FAILED], {0: log.encode()}, data=[known])
    assert failure is not None
    assert (outcome, failure.failure_class) == ("failed", FailureClass.DATA)
    assert "pets" in failure.message
    if known.troubles:
        assert TROUBLE.message in failure.message
    assert (failure.rank, failure.exit_code) == (0, 1)


def test_process_with_a_mapped_file_dies_silently() -> None:
    bus = rank_record(exit_code=None, signal=int(signal.SIGBUS))
    _, failure = diagnose([record("failed", bus)], {0: b"epoch 1\n"}, data=[facts()])
    assert failure is not None
    assert failure.failure_class is FailureClass.DATA
    assert "SIGBUS" in failure.message


@pytest.mark.parametrize(
    ("log", "known"),
    [
        (OWN_FAULT, facts()),  # the mount works again
        (OWN_FAULT, facts(trouble=False)),
        (UNREADABLE.replace(PATH, "/elsewhere"), facts(mounted=False, trouble=False)),
    ],
    ids=["trouble that passed", "no trouble", "another disk"],
)
def test_failures_of_the_script_are_not_blamed_on_data(log: str, known: DataFacts) -> None:
    _, failure = diagnose([FAILED], {0: log.encode()}, data=[known])
    assert failure is not None
    assert failure.failure_class is FailureClass.USER


@pytest.mark.parametrize("is_outage", [False, True])
def test_storage_lost_during_a_read_is_reported_as_an_outage(
    is_outage: bool,
) -> None:
    known = replace(facts(), troubles=(replace(TROUBLE, is_outage=is_outage),))
    _, failure = diagnose([FAILED], {0: UNREADABLE.encode()}, data=[known])
    assert failure is not None
    assert failure.is_outage is is_outage
