"""Notebook files for tests."""

from __future__ import annotations

import json
from pathlib import Path


def write_notebook(path: Path, *cells: str) -> Path:
    """Write a notebook with these code cells, a text cell before each."""
    listed: list[dict[str, str | list[str]]] = []
    for text in cells:
        listed.append({"cell_type": "markdown", "source": "# text"})
        listed.append({"cell_type": "code", "source": text.splitlines(keepends=True)})
    path.write_text(json.dumps({"nbformat": 4, "cells": listed}))
    return path
