"""Code that is part of rayjobs, by its name in pipeline and sweep files."""

from __future__ import annotations

from pathlib import Path

# Name → folder in the package.
COMPONENTS = {"images": "images/component"}


def component_folder(name: object) -> str | None:
    """Return the folder of a component's scripts; None if there is no such component."""
    found = COMPONENTS.get(name) if isinstance(name, str) else None
    return None if found is None else str((Path(__file__).parent.parent / found).absolute())


def remedy() -> str:
    """Return the remedy for a name that is not a component."""
    return f"Use: {', '.join(sorted(COMPONENTS))}."
