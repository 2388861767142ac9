"""Checks that the names in documents exist: paths, modules, tests, classes, functions, variables.

Only text in backticks is checked. A path of this repository must exist, a test after `::` must be
in its file, a module must have the names that follow it, and every other identifier (`snake_case`,
`CamelCase`, `call()`, each part of `a.b`) must occur as a word in the code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from files import ROOT, project_files, read_text

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FOLDERS = "|".join(
    path.name
    for path in sorted(ROOT.iterdir())
    # The output folder of `make` may or may not exist.
    if path.is_dir() and not path.name.startswith(".") and path.name != "build"
)
PATH = re.compile(rf"(?:{FOLDERS})/[\w./*-]*(?:::[\w*:]+)?")
MODULE = re.compile(r"(?:rayjobs|datastore|tuning)(?:\.\w+)+(?:\(\))?")
DOTTED = re.compile(r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
IDENTIFIER = re.compile(r"_?[A-Za-z]\w*(?:_\w+|[a-z][A-Z]\w*)|[A-Za-z_]\w*(?=\()")
SOURCES = (".py", ".sh", ".sql", ".toml", ".yaml", ".json", ".txt")
FILE = re.compile(r"[\w./*-]+\.(?:py|toml|ya?ml|sh|md|txt|json|db)(?:::[\w*:]+)?")
# Names of other programs, and of users' files, which occur in no file of this project.
FOREIGN = {
    "MADV_COLLAPSE",
    "ObjectRef.future()",
    "RAY_REDIS_ADDRESS",
    "_repr_html_",
    "btl_tcp_if_include",
    "datastore/path",
    "oob_tcp_if_include",
    "rayjobs.git",  # a property of runs
}


@functools.cache
def _words() -> frozenset[str]:
    """Return every word of the code, including tests, tools and examples."""
    found: set[str] = set()
    for path in project_files(*SOURCES):
        found.update(re.findall(r"\w+", read_text(path) or ""))
    return frozenset(found)


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _has(path: Path, name: str) -> bool:
    """Return whether a file has a test with this name; `*` stands for any letters."""
    pattern = re.escape(name).replace(r"\*", r"\w*")
    return bool(re.search(rf"^\s*(?:async )?(?:def|class) {pattern}\b", _text(path), re.MULTILINE))


def _module_file(dotted: str) -> Path | None:
    path = ROOT / dotted.replace(".", "/")
    return next(
        (one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None
    )


def _path_problem(text: str) -> str | None:
    name, _, test = text.partition("::")
    if any(part.partition(".")[0].isupper() for part in name.split("/")):
        return None  # `rayjobs/cli/NAME.py`: a placeholder for a name
    if not list(ROOT.glob(name.rstrip("/"))):
        return f"there is no {name}"
    missing = [part for part in test.split("::") if part and not _has(ROOT / name, part)]
    return f"there is no {missing[0]} in {name}" if missing else None


def _module_problem(text: str) -> str | None:
    parts = text.removesuffix("()").split(".")
    for count in range(len(parts), 0, -1):
        file = _module_file(".".join(parts[:count]))
        if file is not None:
            missing = [name for name in parts[count:] if not re.search(rf"\b{name}\b", _text(file))]
            return f"{file.relative_to(ROOT)} has no {missing[0]}" if missing else None
    return f"there is no module {text}"


def unknown_names(text: str, *, is_guide: bool) -> Iterator[str]:
    """Yield one sentence for each name in a document that does not exist.

    Guides may name files of their readers; elsewhere, a path such as `x/y.py` is in this project.
    """
    for code in CODE.findall(text):
        if code in FOREIGN:
            continue
        problem = None
        is_file = FILE.fullmatch(code) is not None
        is_data = code.endswith((".json", ".txt", ".db"))
        if PATH.fullmatch(code) or (is_file and "/" in code and not is_guide and not is_data):
            problem = _path_problem(code)
        elif is_file:
            continue
        elif MODULE.fullmatch(code):
            problem = _module_problem(code)
        else:
            names = []
            if dotted := DOTTED.fullmatch(code):
                names = [dotted[1], *dotted[2].strip(".").split(".")]
            elif IDENTIFIER.fullmatch(name := code.partition("(")[0]):
                names = [name]
            for name in names:
                if name not in _words():
                    problem = f"nothing in the code is called {name}"
        if problem:
            yield f"`{code}`: {problem}"
