"""Detects a user's own `rayjobs` next to a program, which hides the installed package."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "rayjobs"


def hiding(folder: Path) -> str:
    """Return a sentence if a file hides this package from programs in a folder; else ""."""
    module, package = folder / f"{PACKAGE}.py", folder / PACKAGE / "__init__.py"
    if module.is_file():
        shown = module.name
    elif package.is_file() and not (folder / PACKAGE / "injob").is_dir():
        shown = f"{PACKAGE}/"
    else:
        return ""
    return (
        f"{shown} in {folder} hides the installed package: "
        "programs in this folder import it instead. Rename it"
    )
