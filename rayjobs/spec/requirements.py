"""Lines of requirements files: read, joined, and checked before anything is installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayjobs.core.errors import NotFoundError, Problem, SpecError
from rayjobs.core.text import size_text

FILE_LIMIT = 512 * 1024  # bytes
MOST_FILES = 20  # the depth to which files may include each other
MOST_LINES = 2_000
LEAST_PYTHON = (3, 8)  # rayjobs' own code inside a job needs it
SECRET_PREFIX = "RAYJOBS_SECRET_"

# Accepted spelling of an option → its standard spelling.
OPTIONS: Mapping[str, str] = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
    "--no-index": "--no-index",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
    "--pre": "--pre",
}
PRE = "--pre"  # also pre-releases; uv only accepts it on its command line
_IMPLIED = frozenset({"--require-hashes"})  # every lock has hashes
_WITHOUT_VALUE = frozenset({"--no-index", "--require-hashes", PRE})
_INCLUDE = ("-r", "--requirement")
_EDITABLE = ("-e", "--editable")
_CONSTRAIN = ("-c", "--constraint", "--constraints")
# Marks a line of an included constraints file, until `constraints_apart` removes it.
_CONSTRAINT = "--constraint-of-a-file "
_ADVICE: Mapping[str, str] = {
    "--trusted-host": "Set it in the pip or uv settings of the node (UV_INSECURE_HOST).",
}
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[^\]]*\])?\s*"
    r"(?:$|(?:[<>!~]=|==|[<>;@(]).*)",
    re.DOTALL,
)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz")
_USER = re.compile(r"://([^/@\s]+)@")
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_]+)\}")
_VERSION = re.compile(r"(?:[0-9]+(?:\.[0-9]+){0,2}|[<>=!~][<>=!~0-9.,* ]*)")
_NAMED_USERS = frozenset({"git", "hg", "svn"})


def read(path: Path, *, field: str = "environment") -> list[str]:
    """Return the lines of a requirements file and of the files that it includes.

    Comments are removed, continued lines joined, and file paths made absolute.

    Args:
        field: The field named in problems.

    Raises:
        NotFoundError: no such file.
        SpecError: it cannot be read, or includes itself.
    """
    return list(_read(path, field, ()))


def _read(path: Path, field: str, above: tuple[Path, ...]) -> Iterator[str]:
    path = path.expanduser().absolute()
    if path in above or len(above) >= MOST_FILES:
        what = f"{path} includes itself, or is nested too deeply."
        raise _refused(field, what, "Remove that line.")
    lines = joined(text_of(path, field))
    yield from _expanded(lines, path.parent, field, (*above, path))


def expanded(lines: Sequence[str], folder: Path, *, field: str) -> list[str]:
    """Return the requirements in lines that may not come from a file, as `read` does.

    Args:
        folder: The base of relative paths.

    Raises:
        NotFoundError, SpecError: an included file is missing or wrong, see `read`.
    """
    return list(_expanded(joined("\n".join(lines)), folder.absolute(), field, ()))


def _expanded(
    lines: Sequence[str], folder: Path, field: str, above: tuple[Path, ...]
) -> Iterator[str]:
    for line in lines:
        option, value = option_of(line)
        if option in _EDITABLE:
            # The copy that travels with the job cannot be edited.
            value = value if "://" in value or value.startswith((".", "/", "~")) else f"./{value}"
            yield from _expanded([value], folder, field, above)
        elif option in _INCLUDE:
            yield from _read(folder / value, field, above)
        elif option in _CONSTRAIN:
            for one in _read(folder / value, field, above):
                yield f"{_CONSTRAINT}{one.removeprefix(_CONSTRAINT)}"
        elif option is not None and OPTIONS.get(option) == "--find-links":
            is_url = "://" in value
            yield f"--find-links {value if is_url else folder / Path(value).expanduser()}"
        elif option is None and is_file(line):
            path, marker, rest = line.partition(" ")
            plain, bracket, extras = path.partition("[")
            full = os.path.normpath(folder / Path(plain).expanduser())
            yield f"{full}{bracket}{extras}{marker}{rest}"
        else:
            yield line


def folder_of(line: str) -> str:
    """Return the folder in a line such as ``--find-links FOLDER``; empty for any other line."""
    option, value = option_of(line)
    is_folder = option is not None and OPTIONS.get(option) == "--find-links" and "://" not in value
    return value if is_folder else ""


def constraints_apart(lines: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Split lines from `read` into those that are not constraints, and the constraints."""
    found = [
        line.removeprefix(_CONSTRAINT)
        for line in lines
        if isinstance(line, str) and line.startswith(_CONSTRAINT)
    ]
    kept = [one for one in lines if not (isinstance(one, str) and one.startswith(_CONSTRAINT))]
    return kept, found


def as_constraints(constraints: Sequence[str]) -> list[str]:
    """Return constraints as the lines from which `constraints_apart` takes them."""
    return [f"{_CONSTRAINT}{one}" for one in constraints]


def name_of(line: str) -> str:
    """Return the package name in a line, normalized as package indexes do."""
    found = re.match(r"[A-Za-z0-9._-]+", line.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line


def text_of(path: Path, field: str) -> str:
    """Return the text of a file that describes an environment.

    Raises:
        NotFoundError: no such file.
        SpecError: it cannot be read, is too large, or is not text.
    """
    try:
        if not path.exists():
            raise NotFoundError(f"there is no file {path}, which {field} names. Check its name")
        raw = path.read_bytes()
        if len(raw) > FILE_LIMIT:
            raise _refused(field, f"{path} is larger than {size_text(FILE_LIMIT)}.", "Shorten it.")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise _refused(field, f"{path} cannot be read ({error.strerror}).", "Check it.") from error
    except UnicodeDecodeError as error:
        raise _refused(field, f"{path} is not UTF-8 text.", "Save it as UTF-8.") from error


def joined(text: str) -> list[str]:
    """Return the lines of a text without comments and empty lines, with continued lines joined.

    Source: pip's requirements file format.
    """
    lines, held = [], ""
    for raw in text.splitlines():
        line = held + _COMMENT.sub("", raw).strip()
        if line.endswith("\\"):
            held = line[:-1].rstrip() + " "
            continue
        held = ""
        if line.strip():
            lines.append(line.strip())
    if held.strip():
        lines.append(held.strip())
    return lines


def option_of(line: str) -> tuple[str | None, str]:
    """Return the option in a line and its value; the option of a requirement is None."""
    if not line.startswith("-"):
        return None, ""
    name, separator, value = line.partition("=") if line.startswith("--") else (line, "", "")
    if not separator or " " in name:
        name, _, value = line.partition(" ")
    if not value and not name.startswith("--") and len(name) > 2:
        name, value = name[:2], name[2:]  # -rother.txt
    return name, value.strip()


def is_file(line: str) -> bool:
    """Whether a requirement names a file by its path."""
    first = line.split(" ", 1)[0].split(";", 1)[0]
    if "://" in first or "@" in line.split(" ", 2)[:2]:
        return False
    is_path = first.partition("[")[0] in (".", "..") or first.startswith(("/", "./", "../", "~/"))
    return is_path or first.endswith(ARCHIVES)


def path_of(line: str) -> str:
    """Return the path in a requirement that names a file or folder."""
    return line.split(" ", 1)[0].split(";", 1)[0].split("[", 1)[0]


def is_version(text: str) -> bool:
    """Whether a text is a version of Python rather than the path of an interpreter."""
    return _VERSION.fullmatch(text.strip()) is not None


def secrets_of(lines: Sequence[str]) -> list[str]:
    """Return the variables that lines refer to as ``${NAME}``, sorted and without repeats."""
    return sorted({name for line in lines for name in _REFERENCE.findall(line)})


# -- checks ----------------------------------------------------------------------------------------


def problems(
    lines: Sequence[str], python: str | None, *, field: str = "environment"
) -> Iterator[Problem]:
    """Yield the problems of an environment's lines and Python."""
    if python is not None and "/" not in python:
        yield from _of_version(python, f"{field}.python")
    if len(lines) > MOST_LINES:
        what = f"{len(lines):,} lines; at most {MOST_LINES:,} are allowed."
        yield Problem(f"{field}.pip", what, "Build the environment yourself and name its path.")
        return
    for index, line in enumerate(lines):
        yield from _of_line(line, f"{field}.pip[{index}]")


def problems_of_constraints(
    lines: Sequence[str], *, field: str = "environment.constraints"
) -> Iterator[Problem]:
    """Yield the problems of constraints, each of which must be a plain requirement."""
    if len(lines) > MOST_LINES:
        what = f"{len(lines):,} lines; at most {MOST_LINES:,} are allowed."
        yield Problem(field, what, "Shorten them.")
        return
    for index, line in enumerate(lines):
        if line.startswith("-") or is_file(line) or _REQUIREMENT.fullmatch(line) is None:
            yield Problem(
                f"{field}[{index}]",
                f"{line[:80]!r} is not a constraint.",
                "Write it like `numpy<2`.",
            )


def problems_of_address(text: str, path: str) -> Iterator[Problem]:
    """Yield the problems of an address that is stored with a job, such as a password in it."""
    yield from _of_credentials(text, path)


def _of_version(python: str, path: str) -> Iterator[Problem]:
    if not is_version(python):
        yield Problem(
            path,
            f"{python!r} is neither a version nor a path.",
            'Write a version such as "3.11", or the interpreter\'s full path.',
        )
    elif python[0].isdigit():
        version = tuple(int(part) for part in python.split("."))
        if version < LEAST_PYTHON[: len(version)]:
            yield Problem(
                path, f"{python} is older than 3.8, which jobs need.", "Request a newer one."
            )


def _of_line(line: str, path: str) -> Iterator[Problem]:
    if "\0" in line or "\n" in line:
        yield Problem(path, "is more than one line, or has a NUL byte.", "Write one line each.")
        return
    yield from _of_credentials(line, path)
    option, value = option_of(line)
    if option is None:
        if is_file(line):
            if not line.startswith("/"):
                yield Problem(path, f"{line!r} is a relative path.", "Write the full path.")
        elif "://" not in line and _REQUIREMENT.fullmatch(line) is None:
            yield Problem(
                path, f"{line[:80]!r} is not a requirement.", "Write it like `numpy>=1.26`."
            )
        return
    if option in _INCLUDE:
        yield Problem(path, f"{line!r} includes a file.", "Give the file itself.")
    elif option not in OPTIONS and option not in _IMPLIED:
        taken = ", ".join(sorted({*OPTIONS.values()}))
        yield Problem(
            path, f"{option} is not supported.", _ADVICE.get(option, f"Supported: {taken}.")
        )
    elif (option in _WITHOUT_VALUE) == bool(value):
        what = "takes no value." if value else "has no value."
        yield Problem(path, f"{option} {what}", "Write it as pip does.")


def _of_credentials(line: str, path: str) -> Iterator[Problem]:
    """Refuse secrets in a line: it is stored with the job. The messages do not show the line."""
    for name in _REFERENCE.findall(line):
        if not name.startswith(SECRET_PREFIX):
            yield Problem(
                path,
                f"refers to the variable {name} of the node.",
                f"Use only variables that begin with {SECRET_PREFIX}.",
            )
    for user in _USER.findall(line):
        name, _, password = user.partition(":")
        given = password or (name if name not in _NAMED_USERS else "")
        if given and _REFERENCE.fullmatch(given) is None:
            yield Problem(
                path,
                "has a user name or password in an address, which would be stored with the job.",
                f"Set {SECRET_PREFIX}INDEX on the target and write "
                f"https://USER:${{{SECRET_PREFIX}INDEX}}@…, or store it in a .netrc there.",
            )


def _refused(field: str, what: str, remedy: str) -> SpecError:
    return SpecError(problems=[Problem(field, what, remedy)])
