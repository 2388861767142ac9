"""What all members of an array printed, one after another, each line with its member before it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click

from rayjobs.cli.output import print_json, print_json_line
from rayjobs.cli.screen import Screen
from rayjobs.cli.settings import Settings
from rayjobs.errors import NotFoundError
from rayjobs.logs import Logs, prefixed
from rayjobs.records import Job, JobLine
from rayjobs.states import JobState
from rayjobs.workspace_files import OpenWorkspace


def print_array(
    settings: Settings,
    workspace: OpenWorkspace,
    array: Job,
    *,
    rank: int = 0,
    tail: int | None = None,
    raw: bool = False,
) -> None:
    """Print the logs of a rank of every member that has started, in the order of their index."""
    screen = Screen(settings, raw=raw)
    shown = 0
    for member in _members(workspace, array):
        logs = Logs(workspace, member.id)
        name = logs.driver_name(rank)
        try:  # a log that is not there is found out by its first part
            chunks = iter([logs.tail(name, lines=tail)]) if tail is not None else logs.chunks(name)
            first = next(chunks, b"")
        except NotFoundError:
            continue  # it failed before it printed, or its files were pruned
        shown += 1
        parts = chain([first], chunks)
        if settings.as_json:
            _print_lines(member, name, parts)
        else:
            for part in prefixed(parts, f"[{member.array_index}] ".encode()):
                screen.write(part)
    screen.end()
    if not shown:
        settings.note(f"no member of {array.id} has printed anything yet")


def _print_lines(member: JobLine, name: str, parts: Iterator[bytes]) -> None:
    rest = b""
    for part in chain(parts, [b""]):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            _print_line(member, name, line)
    if rest:
        _print_line(member, name, rest)


def _print_line(member: JobLine, name: str, line: bytes) -> None:
    print_json_line(
        {
            "job": member.id,
            "array_index": member.array_index,
            "name": name,
            "line": line.decode("utf-8", "replace"),
        }
    )


def print_failed(settings: Settings, workspace: OpenWorkspace, array: Job) -> None:
    """Print why each member that failed did."""
    failed = [one for one in _members(workspace, array) if one.state is JobState.FAILED]
    if settings.as_json:
        print_json(
            [
                {
                    "job": one.id,
                    "array_index": one.array_index,
                    "failure": one.failure.to_dict() if one.failure else None,
                }
                for one in failed
            ]
        )
        return
    for one in failed:
        if one.failure is None:
            continue
        settings.note(f"[{one.array_index}] {one.failure.failure_class}: {one.failure.message}")
        for line in one.failure.lines:
            click.echo(f"[{one.array_index}] {line}")
    if not failed:
        settings.note(f"no member of {array.id} has failed")


def _members(workspace: OpenWorkspace, array: Job) -> Iterator[JobLine]:
    for member in workspace.store.job_lines(parent=array.id, newest_first=False):
        if member.placed_at is not None:
            yield member
