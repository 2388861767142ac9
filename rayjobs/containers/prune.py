"""Finds and removes unused unpacked images of a machine."""

from __future__ import annotations

import re

from rayjobs.containers.cache import ImageCache
from rayjobs.containers.unpacking import RECORD
from rayjobs.environments.prune import Prunable

FOLDER = "images"

IMAGES = Prunable(
    folder=FOLDER,
    cache=ImageCache,
    record=RECORD,
    notes=("names", re.compile(r"[0-9a-f]{32}\.json")),
    making=("fetch", "fetched"),
)
unused, remove = IMAGES.unused, IMAGES.remove
