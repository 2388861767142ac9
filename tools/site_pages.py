"""Adds pages to docs/ in `make docs`: the Python API, and the top-level README and CONTRIBUTING.

Links from docs/ to other files of the repository become plain text: the site does not have them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rayjobs
from rayjobs.injob.submitted import SubmittedRun

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s]+)\)")
# Page of the site → file of the repository.
FROM_THE_TOP = {"start.md": "README.md", "contributing.md": "CONTRIBUTING.md"}

INTROS = {
    "jobs": "# Jobs and runs\n\nImport these names from `rayjobs`. The "
    "[guide](../guides/python.md) shows them in use.",
    "data": "# Data\n\nImport these names from `rayjobs` or `rayjobs.datastore`. The "
    "[guide](../guides/data.md) shows them in use.",
    "sweeps": "# Sweeps\n\nImport these names from `rayjobs` or `rayjobs.tuning`. The "
    "[guide](../guides/sweeps.md) shows them in use.",
    "inside": "# Inside a script\n\nThese names need only the standard library. The "
    "[guide](../guides/python.md#inside-a-script) shows them in use.",
}


def _public() -> Iterator[tuple[str, str, str]]:
    """Yield page, name and full path of every public name.

    Inside a job, `Run` is a different class than outside: each page describes its own.
    """
    yield "jobs", "Run", _path(rayjobs.Run._handle())
    yield "inside", "Run", _path(SubmittedRun)
    for name, module in rayjobs._LAZY.items():
        found = getattr(rayjobs, name)
        if name == "Run" or name.startswith("_"):
            continue
        if name == "checkpoint":
            page = "inside"
        elif module.startswith("rayjobs.datastore"):
            page = "data"
        else:
            page = "sweeps" if module.startswith("rayjobs.tuning") else "jobs"
        yield page, name, _path(found)


def _path(found: Any) -> str:
    name = getattr(found, "__qualname__", None)
    return f"{found.__module__}.{name}" if name else str(found.__name__)


def _api_pages() -> dict[str, str]:
    pages = {name: [text] for name, text in INTROS.items()}
    seen: set[str] = set()
    for page, name, path in _public():
        if path not in seen:  # some names are aliases of others
            seen.add(path)
            pages[page].append(f"::: {path}\n    options:\n      heading: {name}")
    pages["jobs"].append("::: rayjobs.core.errors\n    options:\n      heading: Errors")
    return {f"api/{name}.md": "\n\n".join(parts) + "\n" for name, parts in pages.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions to the navigation."""
    folder = Path(config.docs_dir) / "decisions"
    paths = [f"decisions/{path.name}" for path in sorted(folder.glob("[0-9]*.md"))]

    def complete(items: list[Any]) -> None:
        for item in items:
            for title, value in item.items() if isinstance(item, dict) else ():
                if title == "Decisions":
                    item[title] = ["decisions/README.md", *paths]
                elif isinstance(value, list):
                    complete(value)

    complete(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    for page, file in FROM_THE_TOP.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for page, text in _api_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's own pages; links to other files become text."""
    if "```mermaid" in markdown:
        raise PluginError(
            f"{page.file.src_uri}: a diagram would be drawn by a script from the network"
        )
    source = page.file.src_uri
    origin = FROM_THE_TOP.get(source, f"docs/{source}")

    def replace(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        name, mark, anchor = target.partition("#")
        if not name or re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), name))
        pages = {file: page for page, file in FROM_THE_TOP.items()}
        uri = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if files.get_file_from_path(uri) is None:
            return text
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(source))}{mark}{anchor})"

    return LINK.sub(replace, markdown)
