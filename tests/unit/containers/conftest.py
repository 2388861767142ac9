"""A node's images without Ray: attempts that request images, and their messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rayjobs.containers.cache import ImageCache
from rayjobs.containers.images import AskedImage, Images, ImageWork, ReadyImage
from rayjobs.containers.layers import MOST_BYTES
from rayjobs.core.paths import AttemptPaths, NodePaths
from rayjobs.environments.building import Control


@dataclass
class Wish:
    """One attempt that requests an image."""

    work: ImageWork
    messages: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        """The steps that were reported, by kind."""
        return [str(data["step"]) for _text, data in self.messages]

    @property
    def log(self) -> str:
        """The log of fetching and unpacking."""
        path = self.work.paths.build_log
        return path.read_text() if path.exists() else ""


class ImageNode:
    """The images of one node below a folder."""

    def __init__(self, root: Path) -> None:
        self.paths = NodePaths(root)
        self.cache = ImageCache(self.paths.images)
        self.most_bytes = MOST_BYTES
        self._numbers = itertools.count(1)

    def wish(self, **settings: Any) -> Wish:
        """Return a new attempt."""
        job = f"job{next(self._numbers)}"
        paths: AttemptPaths = self.paths.attempt(job, 1)
        paths.tmp.mkdir(parents=True)
        messages: list[tuple[str, Mapping[str, Any]]] = []
        control = Control(marker=f"rj-{self.paths.root.parent.name}-{job}")
        work = ImageWork(
            paths, control, lambda text, data: messages.append((text, data)), **settings
        )
        return Wish(work, messages)

    def realise(self, image: str | AskedImage, wish: Wish | None = None) -> ReadyImage:
        """Make an image ready, as a new agent of the node does."""
        request = image if isinstance(image, AskedImage) else AskedImage(image=image)
        images = Images(self.paths.images, self.most_bytes)
        return asyncio.run(images.realise(request, (wish or self.wish()).work))

    @property
    def left_in_building(self) -> list[str]:
        """What is below ``building``."""
        return sorted(path.name for path in self.cache.building.iterdir())


@pytest.fixture
def image_node(tmp_path: Path) -> ImageNode:
    """A node that has no images yet."""
    return ImageNode(tmp_path / "node")
