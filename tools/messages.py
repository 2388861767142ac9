"""Writes docs/reference/messages.md: every message and record of our processes, from its class.

`check_docs` fails when the file is not what this writes.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator

from files import ROOT
from reference import first_sentence, meanings

from rayjobs.injob import run_calls
from rayjobs.injob.messages import Message
from rayjobs.injob.outcomes import EndReason, Outcome
from rayjobs.jobs.events import EventData
from rayjobs.jobs.outcomes import ENDS, RULES
from rayjobs.protocol import calls
from rayjobs.target.answers import ANSWERS

FILE = ROOT / "docs" / "reference" / "messages.md"
HEAD = """\
# Messages and records

The messages that the processes of a job exchange, and the records that they leave, as JSON.
This page is written by `tools/messages.py` from the classes.

One rule applies to all of them (`rayjobs/injob/messages.py`). A key that a class does not know is
from a later version and is ignored. A missing key is from an earlier version and gets its
default. A missing key without a default is refused, and so is a higher `version`.
`Message.upgraded` converts what an earlier version wrote to the current form.
"""
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", object: "JSON"}


def classes() -> dict[str, type[Message]]:
    """Return every class of a message, by name.

    Raises:
        ValueError: two classes have one name, and the page has a section for each name.
    """
    folders = (ROOT / "rayjobs", ROOT / "rayjobs" / "tuning")  # the second is a link
    for file in sorted(one for folder in folders for one in folder.rglob("*.py")):
        if re.search(r"\((Message|EventData)\)", file.read_text(encoding="utf-8")):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    found: dict[str, type[Message]] = {}
    for one in _subclasses(Message):
        if found.setdefault(one.__name__, one) is not one:
            raise ValueError(f"two messages are called {one.__name__}: rename one of them")
    return dict(sorted(found.items()))


def _subclasses(cls: type[Message]) -> Iterator[type[Message]]:
    for one in cls.__subclasses__():
        # A dataclass with slots is created twice: skip the class that is not the one in its module.
        is_own = getattr(inspect.getmodule(one), one.__name__, None) is one
        if is_own and dataclasses.is_dataclass(one):
            yield one
        yield from _subclasses(one)


def form_of(kind: object) -> str:
    """Return a description of the values of a field."""
    if kind is bytes:
        return "bytes, in base 64"
    if isinstance(kind, type) and kind in KINDS:
        return KINDS[kind]
    arguments = [one for one in typing.get_args(kind) if one not in (type(None), Ellipsis)]
    origin = typing.get_origin(kind)
    if origin is tuple:
        if Ellipsis not in typing.get_args(kind):
            return f"list of {len(arguments)}: " + ", ".join(map(form_of, arguments))
        return f"list of {form_of(arguments[0])}"
    if isinstance(origin, type) and hasattr(origin, "keys"):
        return f"mapping of {form_of(arguments[1])}"
    if arguments:
        return f"{form_of(arguments[0])}, or null"
    assert isinstance(kind, type)
    if issubclass(kind, enum.Enum):
        return f"`{kind.__name__}`"
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def default_of(field: dataclasses.Field[object]) -> str:
    """Return a field's default as JSON."""
    if field.default is dataclasses.MISSING:
        return "**required**" if field.default_factory is dataclasses.MISSING else "`{}`"
    if isinstance(field.default, Message):
        return ""
    return f"`{json.dumps(field.default)}`"


def section(cls: type[Message]) -> str:
    """Return the section of a class: its first sentence and a table of its fields."""
    texts, hints = meanings(cls), typing.get_type_hints(cls)
    lines = [f"## {cls.__name__}", "", first_sentence(cls)]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if fields:
        lines += ["", "| key | value | default | meaning |", "|---|---|---|---|"]
    for one in fields:
        cells = (
            f"`{one.name}`",
            form_of(hints[one.name]),
            default_of(one),
            texts.get(one.name, ""),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def text() -> str:
    """Return the whole page."""
    known = classes()
    kinds = [one for one in vars(calls).values() if isinstance(one, calls.Call)]
    link = "[{0}](#{1})".format
    of_calls = [
        f"| `{one.name}` | {link(one.asked.__name__, one.asked.__name__.lower())} "
        f"| {link(one.answer.__name__, one.answer.__name__.lower())} |"
        for one in kinds
    ]
    of_target = [
        f"| `{op}` | {link(kind.__name__, kind.__name__.lower())} |" for op, kind in ANSWERS.items()
    ]
    of_requests = [
        f"| `{one.NAME}` | {link(one.__name__, one.__name__.lower())} "
        f"| {form_of(run_calls.value_of(one))} |"
        for one in run_calls.Request.__subclasses__()
    ]
    of_events = [
        f"| `{one.KIND}` | {link(one.__name__, one.__name__.lower())} |"
        for one in sorted(_subclasses(EventData), key=lambda one: one.KIND)
    ]
    of_outcomes = [
        f"| `{one}` | {RULES[one].final_state or 'tried again'} "
        f"| {RULES[one].failure_class or ''} | {'yes' if RULES[one].spends_budget else 'no'} "
        f"| {'yes' if RULES[one].is_loss else 'no'} |"
        for one in Outcome
    ]
    of_ends = [
        f"| `{one}` | `{ENDS[one].outcome}` | {ENDS[one].failure_class or ''} "
        f"| {'yes' if ENDS[one].is_consequence else 'no'} |"
        for one in EndReason
    ]
    parts = [
        HEAD.strip(),
        "## Calls of a node's agent\n\nThe engine makes them; the agent of an attempt's first node "
        "makes `start_daemon`.\nThey are in `rayjobs/protocol/calls.py`.\n\n"
        "| call | request | answer |\n|---|---|---|\n" + "\n".join(of_calls),
        "## Operations of a target's wake socket\n\nEach request is a "
        "[TargetRequest](#targetrequest); `rayjobs/target/answers.py`.\n\n"
        "| operation | answer |\n|---|---|\n" + "\n".join(of_target),
        "## Calls of a job's script\n\nThe script makes them to its node's agent; "
        "`rayjobs/injob/run_calls.py`.\n\n"
        "| call | request | value of the answer |\n|---|---|---|\n" + "\n".join(of_requests),
        "## Events of a job's history\n\nThe kinds whose data is read by code; "
        "`rayjobs/jobs/events.py`.\n\n"
        "| kind | data |\n|---|---|\n" + "\n".join(of_events),
        "## Outcomes of an attempt\n\n"
        "| outcome | the job is then | failure class | counts against its budget | host or node "
        "lost |\n|---|---|---|---|---|\n" + "\n".join(of_outcomes),
        "## Why an attempt's hosts are asked to end it\n\n"
        "| reason | outcome | failure class | consequence of another node |\n|---|---|---|---|\n"
        + "\n".join(of_ends),
        *(section(one) for one in known.values()),
    ]
    return "\n\n".join(parts) + "\n"


def stale() -> list[str]:
    """Return a sentence if the page does not match the classes."""
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text():
        return []
    return ["docs/reference/messages.md: is not up to date: run tools/messages.py"]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"written: {FILE.relative_to(ROOT)}")
