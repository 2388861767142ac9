"""A user's own `rayjobs` next to a program, which its `import rayjobs` finds instead of ours."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "rayjobs"


def hiding(folder: Path) -> str:
    """Return a sentence about what hides this package from programs in a folder; else empty."""
    module, package = folder / f"{PACKAGE}.py", folder / PACKAGE / "__init__.py"
    if module.is_file():
        found, shown = module, module.name
    elif package.is_file() and not (folder / PACKAGE / "injob").is_dir():
        found, shown = package, f"{PACKAGE}/"
    else:
        return ""
    return (
        f"{shown} in {found.parents[0 if found is module else 1]} hides the installed package: "
        f"`import {PACKAGE}` of a program next to it gets that one. Rename it"
    )
