"""Checks that a workspace can be used from here: writes, reads and removes records and files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from rayjobs.core.errors import RayjobsError
from rayjobs.core.ids import token
from rayjobs.core.text import counted, duration_text, size_text
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.workspace.folder import OpenWorkspace

Result = TypeVar("Result")

CLOCK_SLACK_S = 5.0  # a larger difference confuses people; S3 refuses requests at 15 minutes
PROBE_BYTES = 64 * 1024
PROBE_KEY = "meta:check"


@dataclass
class Report:
    """What a check found.

    Attributes:
        values: What was measured, by name.
        lines: The measurements in words.
        problems: What does not work, and what to do.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, for programs."""
        return {**self.values, "problems": list(self.problems)}


def look(workspace: OpenWorkspace) -> Report:
    """Check the workspace's store, files and targets; remove what the checks have written."""
    report = Report()
    _try(report, lambda: _store(workspace, report))
    _try(report, lambda: _files(workspace, report))
    _try(report, lambda: _targets(workspace, report))
    return report


def _try(report: Report, work: Callable[[], None]) -> None:
    try:
        work()
    except RayjobsError as error:
        report.problems.append(error.message)


def _store(workspace: OpenWorkspace, report: Report) -> None:
    store, probe = workspace.store, f"{PROBE_KEY}:{token(4)}"
    jobs, read_s = _timed(lambda: sum(store.counts().values()))
    _, write_s = _timed(lambda: store.set_meta(probe, "1"))
    store.set_meta(probe, None)
    facts = store.facts()
    report.values |= {"jobs": jobs, "read_ms": _ms(read_s), "write_ms": _ms(write_s), **facts.json}
    report.lines.append(
        f"store: {counted(jobs, 'job')}; a read took {_ms(read_s)} ms and a write {_ms(write_s)} "
        f"ms ({facts.server})"
    )
    _clock(report, "the store's server", facts.clock_s)


def _files(workspace: OpenWorkspace, report: Report) -> None:
    blobs, key = workspace.blobs, f"check/{token(8)}"
    data = token(PROBE_BYTES // 2).encode()
    _, write_s = _timed(lambda: blobs.put_bytes(data, key))
    try:

        def read() -> bytes:
            with blobs.open(key) as file:
                return file.read()

        found, read_s = _timed(read)
        if found != data:
            report.problems.append(
                f"a file that was stored comes back changed ({len(data)} bytes stored, "
                f"{len(found)} read): nothing in this storage can be trusted; check it"
            )
        if key not in list(blobs.list("check/")):
            report.problems.append("a file that was stored is not listed; check the storage")
    finally:
        blobs.delete(key)
    if blobs.exists(key):
        report.problems.append("a file cannot be removed, so `rayjobs prune` cannot free any space")
    report.values |= {"file_write_ms": _ms(write_s), "file_read_ms": _ms(read_s)}
    report.lines.append(
        f"files: {size_text(len(data))} were stored in {_ms(write_s)} ms, read in {_ms(read_s)} "
        f"ms, listed and removed"
    )
    if workspace.blobs_address is None:
        return
    from rayjobs.workspace.s3_blobs import S3Blobs

    assert isinstance(blobs, S3Blobs)
    owner = blobs.owner() or {}
    if owner.get("id") != workspace.id:
        report.problems.append(
            f"{blobs.address.where} is not recorded as this workspace's ({workspace.id}), but as "
            f"{owner.get('id', 'none')}: a prune elsewhere may remove its files. Check the address "
            f"in {Path(workspace.path) / 'workspace.json'}"
        )
    _clock(report, "the server of the files", blobs.clock_s())


def _targets(workspace: OpenWorkspace, report: Report) -> None:
    for name in sorted({"local", *(line.target for line in workspace.store.job_lines())}):
        serving = workspace.store.serving(name)
        if serving is not None and serving.is_live:
            report.lines.append(f"{serving.sentence} (rayjobs {serving.claimant.version})")
        elif serving is not None:
            report.lines.append(serving.sentence)


def _clock(report: Report, whose: str, clock_s: float) -> None:
    skew_s = time.time() - clock_s
    if abs(skew_s) > CLOCK_SLACK_S:
        way = "ahead of" if skew_s > 0 else "behind"
        report.problems.append(
            f"this machine's clock is {duration_text(round(abs(skew_s)))} {way} that of {whose}; "
            f"set it by NTP (`timedatectl set-ntp true`)"
        )


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    started_s = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started_s


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
