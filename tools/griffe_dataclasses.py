"""Tells the API reference that `rayjobs.injob.lazy_dataclass.dataclass` makes dataclasses.

Griffe, which reads the code for mkdocstrings, knows a dataclass by the decorator
`dataclasses.dataclass`. This extension resolves imports of our decorator as imports of that one.
"""

from __future__ import annotations

from typing import Any

import griffe

OURS = "rayjobs.injob.lazy_dataclass.dataclass"


class LazyDataclasses(griffe.Extension):
    """Resolves our decorator as that of `dataclasses`."""

    def on_alias_instance(self, *, alias: griffe.Alias, **kwargs: Any) -> None:
        """Change the target of an import as soon as it has been read."""
        if alias.target_path == OURS:
            alias.target_path = "dataclasses.dataclass"
