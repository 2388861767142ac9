"""Checks that the links in documents resolve, and that the commands and names that they show exist.

The references of job files, sweep files and messages must be what `tools/reference.py` and
`tools/messages.py` write.

Shown commands are read from fenced `sh`, `bash` and `console` blocks: `rayjobs …` with its options,
`make …`, and files given to `python` or `rayjobs submit`. Names are in backticks (`doc_names`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import messages
import reference
from doc_names import unknown_names
from files import ROOT, project_files

os.environ.update(COLUMNS="250", NO_COLOR="1", TERM="dumb")

from rayjobs.cli.main import run as run_command_line

LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*```(\w*)[^\n]*\n(.*?)^\s*```\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
SHELLS = {"sh", "bash", "console", "shell"}
# Files that a document may show although they are the reader's own.
READERS_OWN = {"train.py", "job.yaml", "job.yml", "sweep.yaml", "environment.yml",
               "offline-conda/environment.yml"}  # fmt: skip


def _anchors(path: Path) -> set[str]:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        name, serial = plain, 0
        while name in found:
            serial += 1
            name = f"{plain}-{serial}"
        found.add(name)
    return found


def broken_links(path: Path, text: str) -> Iterator[str]:
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    for match in LINK.finditer(prose):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists():
            yield f"link to {target!r}: there is no such file"
        elif anchor and there.suffix == ".md" and anchor not in _anchors(there):
            yield f"link to {target!r}: there is no such heading"


def _inline_commands(text: str) -> Iterator[str]:
    """Yield the `rayjobs` commands in inline code, without their arguments."""
    for code in INLINE_CODE.findall(FENCE.sub("", text)):
        words = code.strip("`").split()
        if words[:1] == ["rayjobs"] and words[1:] and re.fullmatch(r"[a-z-]+", words[1]):
            yield " ".join(words[:3])


def _shown_commands(text: str) -> Iterator[str]:
    for language, body in FENCE.findall(text):
        if language.lower() not in SHELLS:
            continue
        joined = re.sub(r"\\\n\s*", " ", body)
        lines = [line.strip() for line in joined.splitlines()]
        if any(line.startswith("$ ") for line in lines):  # the rest is output
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        yield from (line for line in lines if line and not line.startswith("#"))


@functools.cache
def _help(*command: str) -> str | None:
    """Return the output of `rayjobs COMMAND --help`; None if there is no such command.

    It runs within this process: a separate process for each command would take ten times as long.
    """
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        code = run_command_line([*command, "--help"])
    return printed.getvalue() if code == 0 else None


def _command_path(words: list[str]) -> tuple[str, ...]:
    """Return the name of a command, followed by its subcommand if it is a group, and so on."""
    names: tuple[str, ...] = ()
    for word in words[:3]:
        if not re.fullmatch(r"[a-z][a-z-]*", word) or _help(*names, word) is None:
            break
        names = (*names, word)
        if "COMMAND" not in (_help(*names) or ""):
            break
    return names


def _rayjobs_problems(words: list[str]) -> Iterator[str]:
    ours = words[: words.index("--")] if "--" in words else words
    if ours and not ours[0].startswith("-"):
        names = _command_path(ours)
        if not names:
            yield f"there is no command `rayjobs {ours[0]}`"
            return
        rest = ours[len(names) :]
        is_group = "COMMAND" in (_help(*names) or "")
        if is_group and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            yield f"there is no command `rayjobs {' '.join(names)} {rest[0]}`"
            return
    else:
        names = ()
    text = _help(*names) or ""
    for word in ours[len(names) :]:
        option = word.partition("=")[0]
        if option.startswith("--") and not re.search(re.escape(option) + r"(?![\w-])", text):
            yield f"`rayjobs {' '.join(names)}` has no option {option}"
    if names[:1] == ("submit",):
        yield from _missing_files(ours[1:])


def _missing_files(words: list[str]) -> Iterator[str]:
    for word in words:
        is_file = re.fullmatch(r"[\w./-]+\.(?:py|ya?ml|sh)", word)
        if is_file and word not in READERS_OWN and not (ROOT / word).exists():
            yield f"there is no file {word}"


def _make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))


def wrong_commands(text: str) -> Iterator[str]:
    for line in [*_shown_commands(text), *_inline_commands(text)]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError as exc:
            yield f"`{line}` cannot be read by a shell: {exc}"
            continue
        for stop in ("|", "&&", ";", ">", "||"):
            if stop in words:
                words = words[: words.index(stop)]
        while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0]):
            words = words[1:]
        if not words:
            continue
        program = Path(words[0]).name
        if program == "rayjobs":
            yield from _rayjobs_problems(words[1:])
        elif program == "make":
            for word in words[1:]:
                if "=" not in word and not word.startswith("-") and word not in _make_targets():
                    yield f"there is no target `make {word}`"
        elif program.startswith("python"):
            yield from _missing_files(words[1:2])


def pages_missing_from_navigation() -> Iterator[str]:
    """Yield the documents that the site's navigation lacks; decisions are added automatically."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        if not name.startswith("decisions/") and f": {name}\n" not in navigation:
            yield f"docs/{name}: is not in the navigation of mkdocs.yml"


def pages_without_a_link() -> Iterator[str]:
    """Yield the guides and pages that the index of the documents does not name."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    folder = ROOT / "docs"
    for path in sorted([*folder.glob("*.md"), *(folder / "guides").glob("*.md")]):
        name = path.relative_to(folder).as_posix()
        if name not in ("README.md", "start.md", "contributing.md") and f"({name})" not in index:
            yield f"docs/{name}: has no link in docs/README.md"


def main() -> int:
    problems = [
        *reference.stale(),
        *messages.stale(),
        *pages_missing_from_navigation(),
        *pages_without_a_link(),
    ]
    checked = 0
    for path in project_files(".md"):
        checked += 1
        text = path.read_text(encoding="utf-8")
        found = [*broken_links(path, text), *wrong_commands(text)]
        if path.name != "CHANGELOG.md":  # it also names things that no longer exist
            is_guide = "guides" in path.parts or path.name == "README.md"
            found += unknown_names(FENCE.sub("", text), is_guide=is_guide)
        problems += [f"{path.relative_to(ROOT)}: {problem}" for problem in found]
    print("\n".join(problems) if problems else f"{checked} documents")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
