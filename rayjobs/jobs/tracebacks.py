"""Finds a script's last traceback, or its last error lines, in its log."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rayjobs.core.terminal import plain_text
from rayjobs.injob.lazy_dataclass import dataclass

MOST_LINES = 12
LONGEST_LINE = 400
SURVIVED_LINES = 300  # a traceback followed by this much output did not end the process

_HEADER = re.compile(r"^[\s|+]*-*\s*(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_FRAME = re.compile(r'^[\s|]*File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<where>.+))?$')
_FINAL = re.compile(r"^[\s|]*(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
# Printed, but not the cause of the end.
_HARMLESS = re.compile(r"^(?:Exception ignored in|Exception in thread |Exception ignored while)")
_LOUD = re.compile(
    r"(?:^|[\s:\[(])(?:error|errors|fatal|failed|panic|abort(?:ed)?|exception|killed|"
    r"segmentation fault|bus error|core dumped|terminate called|cannot|can't|not found|"
    r"no such file|permission denied|no space left|usage:|assert(?:ion)?)(?:[\s:!.,)\]]|$)"
    r"|\w(?:Error|Exception)\b",
    re.IGNORECASE,
)
# The prefix of each traceback line after a process group is made. Source: torch.distributed's
# excepthook.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# What a process still prints while it exits: c10d's log lines, warnings, wandb's last output, and
# indented continuations, unless they are a progress bar.
_LEAVING = re.compile(r"^(?:\[?[IWEF]\d{4} |\S+:\d+: \w*Warning: |wandb: |\s(?!\s*\d+%\|)|[|+]|$)")
_ATTEMPT = re.compile(r"^.*/attempts/.+?/work/")
# The output of `faulthandler` after a crash. Source: CPython's Modules/faulthandler.c.
_CRASH = re.compile(r"^Fatal Python error: (?P<what>.+)$")
_STACK = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+.*most recent call first")
_STACK_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+),? in (?P<where>.+)$')
_ABORTED = "Aborted"
# Frames of rayjobs' own code do not help the author of a script. This package need not be among
# the libraries: it may be used from its source folder.
_OURS = re.compile(rf"(?:/rayjobs/injob/|^{re.escape(str(Path(__file__).parents[1]))}/)")
_LIBRARY = re.compile(r"(?:/site-packages/|/dist-packages/|/lib/python\d|^<frozen |^<string>)")


@dataclass(frozen=True)
class LogEnd:
    """A log's evidence about a failure.

    Attributes:
        error: The exception's own line, or the most informative line; empty if there is none.
        at: ``train.py:12 in main``; empty if unknown.
        lines: The lines that matter, oldest first.
        is_traceback: Whether `error` is the final line of a traceback (or a syntax error).
        ends_log: Whether, according to the log, the process ended with it: torch printed it as
            uncaught, or only exit output followed.
        raised_in: The file of a traceback's innermost frame; empty if unknown.
        is_crash: Whether `error` is a crash in native code, for which `faulthandler` has printed
            the Python stack.
    """

    error: str
    at: str
    lines: tuple[str, ...]
    is_traceback: bool
    ends_log: bool = False
    raised_in: str = ""
    is_crash: bool = False


def find(tail: bytes) -> LogEnd:
    """Return the evidence at the end of a log about its process's failure."""
    lines, by_torch = _lines(tail)
    start = _last_crash(lines)
    crash = None if start is None else _crash(lines, start)
    traceback = _last_traceback(lines if start is None else lines[:start], by_torch)
    if crash is not None:
        # After a fatal exception, a process may still abort while it exits: a consequence.
        is_consequence = traceback is not None and (traceback.ends_log or crash.error == _ABORTED)
        return traceback if traceback is not None and is_consequence else crash
    if traceback is not None:
        return traceback
    spoken = [line for line in lines if line.strip()]
    loud = [index for index, line in enumerate(spoken) if _LOUD.search(line)]
    # The process survived an error if much other output follows.
    if loud and loud[-1] >= len(spoken) - 20:
        start = max(0, min(loud[-1] - 2, len(spoken) - 6))
        picked = spoken[start : start + MOST_LINES]
        return LogEnd(spoken[loud[-1]].strip(), "", tuple(picked), False)
    last = spoken[-5:]
    return LogEnd("", "", tuple(last), False)


def _lines(tail: bytes) -> tuple[list[str], set[int]]:
    """Return the lines as shown, and which of them torch printed as a rank's own."""
    text = tail.decode("utf-8", "replace")
    lines: list[str] = []
    by_torch: set[int] = set()
    for line in text.split("\n"):
        # Output that a progress bar has overwritten was not visible at the end either.
        seen = line.rstrip("\r").rpartition("\r")[2]
        plain, removed = _RANK.subn("", plain_text(seen))
        if removed:
            by_torch.add(len(lines))
        plain = plain.rstrip()
        cut = len(plain) > LONGEST_LINE
        lines.append(plain[:LONGEST_LINE] + "…" if cut else plain)
    return lines, by_torch


def _last_traceback(lines: list[str], by_torch: set[int]) -> LogEnd | None:
    for start in range(len(lines) - 1, -1, -1):
        line = lines[start]
        if _HEADER.match(line):
            before = next((text for text in reversed(lines[:start]) if text.strip()), "")
            if _HARMLESS.match(before):
                continue
            if sum(1 for text in lines[start:] if text.strip()) > SURVIVED_LINES:
                return None
            log_end = _block(lines, start + 1)
            return replace(log_end, ends_log=True) if start in by_torch else log_end
        if _SYNTAX.match(line):
            # A syntax error of the script itself comes without a header.
            first = start
            while first > 0 and not _FRAME.match(lines[first]) and start - first < 6:
                first -= 1
            if _FRAME.match(lines[first]) and not _has_header_before(lines, first):
                return _block(lines, first)
    return None


def _last_crash(lines: list[str]) -> int | None:
    """Return where the report of a crash without a later traceback begins, or None."""
    for index in range(len(lines) - 1, -1, -1):
        if _HEADER.match(lines[index]):
            return None  # a crash of a helper process, after which the script continued
        if _CRASH.match(lines[index]):
            spoken = sum(1 for line in lines[index:] if line.strip())
            return index if spoken <= SURVIVED_LINES else None
    return None


def _crash(lines: list[str], start: int) -> LogEnd:
    """Return `faulthandler`'s report of a crash: the stack of the crashed thread."""
    match = _CRASH.match(lines[start])
    assert match is not None
    frames: list[re.Match[str]] = []
    is_current = False
    for line in lines[start + 1 :]:
        if stack := _STACK.match(line):
            is_current = stack["current"] == "Current thread"
        elif is_current and (frame := _STACK_FRAME.match(line)):
            frames.append(frame)
    # Innermost first, unlike in a traceback.
    frames = [one for one in frames if not _OURS.search(one["file"])]
    own = next((one for one in frames if not _LIBRARY.search(one["file"])), None)
    chosen = own or (frames[0] if frames else None)
    at = ""
    if chosen is not None:
        at = f"{_ATTEMPT.sub('', chosen['file'])}:{chosen['line']}"
        at += f" in {chosen['where']}" if chosen["where"] != "<module>" else ""
    shown = [one[0].replace(one["file"], _ATTEMPT.sub("", one["file"])) for one in frames]
    before = [line for line in lines[:start] if line.strip()][-2:]
    shown_lines = (*before, match[0], *shown)[:MOST_LINES]
    return LogEnd(match["what"].strip(), at, shown_lines, False, is_crash=True)


def _has_header_before(lines: list[str], index: int) -> bool:
    return any(_HEADER.match(line) for line in lines[max(0, index - 200) : index])


def _block(lines: list[str], start: int) -> LogEnd:
    frames: list[int] = []
    index = start
    while index < len(lines):
        line = lines[index]
        if _FRAME.match(line):
            frames.append(index)
        elif line[:1] not in (" ", "\t", "") and not line.startswith("|"):
            break  # the first line that is not indented: the exception
        is_far = not line.strip() and bool(frames) and index > frames[-1] + 8
        if is_far or (index > start and _ends_group(lines, index, frames)):
            break
        index += 1
    if index >= len(lines):
        index = len(lines) - 1
    final = lines[index].lstrip(" |")
    # The message of an exception may have several lines, up to the first empty one.
    more = []
    for line in lines[index + 1 : index + 4]:
        if not line.strip() or _HARMLESS.match(line):
            break
        more.append(line)
    at, near = _location(lines, frames)
    picked = (*near, final, *more)
    found = tuple(line for line in picked if line.strip())[:MOST_LINES]
    deepest = _FRAME.match(lines[frames[-1]]) if frames else None
    raised_in = "" if deepest is None else deepest["file"]
    return LogEnd(final, at, found, True, _is_leaving(lines[index + 1 :]), raised_in)


def _is_leaving(rest: list[str]) -> bool:
    """Whether these lines are the output of a process that is exiting."""
    ignored = False
    for line in rest:
        if line.startswith("Exception ignored "):
            ignored = True
        elif _LEAVING.match(line) or (ignored and _HEADER.match(line)):
            continue
        elif ignored:
            ignored = False  # the exception that was ignored
        else:
            return False
    return True


def _ends_group(lines: list[str], index: int, frames: list[int]) -> bool:
    """Whether a line of an exception group's block (``  | …``) is its exception."""
    line = lines[index]
    text = line.lstrip()
    if not text.startswith("| ") or not frames or index <= frames[-1] + 1:
        return False
    return not text[2:].startswith(" ") and _FINAL.match(text[2:]) is not None


def _location(lines: list[str], frames: list[int]) -> tuple[str, list[str]]:
    """Return where it happened, preferring the user's own code, and the lines that show it."""
    if not frames:
        return "", []
    own = [index for index in frames if not _is_library(lines[index])]
    index = (own or frames)[-1]
    match = _FRAME.match(lines[index])
    assert match is not None
    file = _ATTEMPT.sub("", match["file"])
    at = f"{file}:{match['line']}"
    if match["where"] and match["where"] != "<module>":
        at += f" in {match['where']}"
    near = [lines[index].replace(match["file"], file).strip()]
    following = lines[index + 1] if index + 1 < len(lines) else ""
    if following.startswith((" ", "\t")) and not _FRAME.match(following):
        near.append(following.rstrip())
    return at, near


def _is_library(line: str) -> bool:
    match = _FRAME.match(line)
    if match is None:
        return False
    return any(kind.search(match["file"]) is not None for kind in (_LIBRARY, _OURS))
