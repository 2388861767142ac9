"""Code that rayjobs brings, by the name that files of pipelines and sweeps give it."""

from __future__ import annotations

from pathlib import Path

# Name → folder below the package.
COMPONENTS = {"images": "images/component"}


def component_folder(name: object) -> str | None:
    """Return the folder of a component's scripts; None: there is no such component."""
    found = COMPONENTS.get(name) if isinstance(name, str) else None
    return None if found is None else str((Path(__file__).parent.parent / found).absolute())


def remedy() -> str:
    """Return what to write instead of a name that is not a component."""
    return f"Use: {', '.join(sorted(COMPONENTS))}."
