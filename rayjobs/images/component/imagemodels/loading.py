"""Loads batches of images: threads decode while the network computes; measurements set the plan."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from .cache import ImageCache
from .decoding import Preprocessing, decode, training_pixels, validation_pixels
from .directory import ImageDirectory

CACHES = ("auto", "none", "encoded", "decoded")
PREFETCH = 3  # batches in preparation besides the one in use
MEASURED = 24  # images that are measured for the plan
DISK_SHARE = 0.5  # share of the free disk space that a cache may take
SLOW_READ = 0.3  # cache encoded files if reading takes more than this share of the time


@dataclass(frozen=True)
class LoadingPlan:
    """How images are loaded, and the measurements that decided it.

    Attributes:
        threads: Threads that decode.
        cache: none, encoded, decoded, or fitted (cropped and resized as the network takes it).
        read_ms: Milliseconds to read a file; `decode_ms`, `fit_ms` to decode, to crop and resize.
        decoded_gib: Size of all images as they would be cached; `encoded_gib` of their files.
        reason: Why this cache was chosen.
    """

    threads: int
    cache: str
    read_ms: float
    decode_ms: float
    fit_ms: float
    decoded_gib: float
    encoded_gib: float
    reason: str


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def make_plan(
    images: ImageDirectory,
    how: Preprocessing,
    *,
    cache: str = "auto",
    folder: str | None = None,
    processes: int = 1,
    threads: int | None = None,
    is_fixed: bool = False,
) -> LoadingPlan:
    """Measure a sample of the images, and choose threads and cache.

    Args:
        images: All images.
        how: Their preprocessing.
        cache: auto, or the cache to use.
        folder: Where the cache would be; its free space counts.
        processes: Processes that share the node.
        threads: Threads to use; None means the node's CPUs divided by its processes.
        is_fixed: Whether an image gives the same pixels in every epoch, so that these can be kept.
    """
    chosen = list(range(0, len(images), max(1, len(images) // MEASURED)))[:MEASURED]
    read_s = decode_s = fit_s = 0.0
    decoded = encoded = 0
    for index in chosen:
        began = time.perf_counter()
        data = images.read(index)
        read = time.perf_counter()
        image = decode(data, images.path(index))
        done = time.perf_counter()
        training_pixels(image, how, (0, 0, index))
        read_s, decode_s = read_s + read - began, decode_s + done - read
        fit_s += time.perf_counter() - done
        decoded += image.width * image.height * 3
        encoded += len(data)
    count = len(chosen)
    scale = len(images) / count
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free * DISK_SHARE
    reason = "as requested"
    if is_fixed and cache == "auto":
        decoded = count * how.image_size**2 * 3
    if cache == "auto":
        cache, reason = _chosen_cache(decoded * scale, encoded * scale, free, read_s, decode_s)
        if is_fixed and cache == "decoded":
            cache, reason = (
                "fitted",
                "all images in the network's size fit into half of the free disk",
            )
    return LoadingPlan(
        threads or max(1, cores() // processes),
        cache,
        1000 * read_s / count,
        1000 * decode_s / count,
        1000 * fit_s / count,
        decoded * scale / 2**30,
        encoded * scale / 2**30,
        reason,
    )


def _chosen_cache(
    decoded: float, encoded: float, free: float, read_s: float, decode_s: float
) -> tuple[str, str]:
    if decoded <= free:
        return "decoded", "all decoded images fit into half of the free disk"
    if read_s <= SLOW_READ * (read_s + decode_s):
        return "none", "decoded images do not fit, and files are read about as fast as a cache"
    if encoded <= free:
        return "encoded", "decoded images do not fit, and reading takes a large part of the time"
    return "none", "neither decoded nor encoded images fit into half of the free disk"


class Loader:
    """Loads images with threads.

    Args:
        images: The images.
        how: Their preprocessing.
        plan: Threads and cache.
        cache: The cache; None to load every image from its file.
        pin: Yield batches in pinned memory, from which copies to a GPU are asynchronous.
    """

    def __init__(
        self,
        images: ImageDirectory,
        how: Preprocessing,
        plan: LoadingPlan,
        *,
        cache: ImageCache | None = None,
        pin: bool = False,
    ) -> None:
        self.images = images
        self.how = how
        self.plan = plan
        self.wait_s = 0.0
        self._cache = cache
        self._pin = pin
        self._pool = ThreadPoolExecutor(plan.threads, thread_name_prefix="images")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def training(
        self, batches: Sequence[Sequence[int]], *, seed: int, epoch: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield uint8 images (n, height, width, 3) and labels (n) of each batch, in order."""
        if self.how.augmentation == "none":
            return self.validation(batches)

        def pixels(index: int) -> np.ndarray[Any, Any]:
            return training_pixels(self.image(index), self.how, (seed, epoch, index))

        return self._batches(batches, pixels)

    def validation(
        self, batches: Sequence[Sequence[int]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches as `training` does, without augmentation."""
        return self._batches(batches, self._fixed_pixels)

    def _fixed_pixels(self, index: int) -> np.ndarray[Any, Any]:
        cache = self._cache
        if cache is None or cache.kind != "fitted":
            return validation_pixels(self.image(index), self.how)
        found = cache.get(index)
        if isinstance(found, np.ndarray):
            return found
        made = validation_pixels(self.image(index), self.how)
        cache.put(index, made)
        return made

    def _batches(
        self,
        batches: Sequence[Sequence[int]],
        pixels: Callable[[int], np.ndarray[Any, Any]],
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        waiting: deque[tuple[torch.Tensor, list[Future[None]], Sequence[int]]] = deque()
        left = iter(batches)
        size = self.how.image_size
        try:
            while True:
                while len(waiting) <= PREFETCH and (batch := next(left, None)) is not None:
                    target = torch.empty(
                        (len(batch), size, size, 3), dtype=torch.uint8, pin_memory=self._pin
                    )
                    rows = target.numpy()
                    # A task for each thread, not for each image: fewer switches.
                    parts = [
                        range(first, len(batch), self.plan.threads)
                        for first in range(min(self.plan.threads, len(batch)))
                    ]
                    tasks = [
                        self._pool.submit(self._fill, rows, part, batch, pixels) for part in parts
                    ]
                    waiting.append((target, tasks, batch))
                if not waiting:
                    return
                target, tasks, batch = waiting.popleft()
                began = time.perf_counter()
                for task in tasks:
                    task.result()
                self.wait_s += time.perf_counter() - began
                known = self.images.labels
                labels = [known[index] if known else -1 for index in batch]
                yield target, torch.tensor(labels, dtype=torch.int64)
        finally:
            for _, tasks, _ in waiting:
                for task in tasks:
                    task.cancel()

    def _fill(
        self,
        rows: np.ndarray[Any, Any],
        part: Sequence[int],
        batch: Sequence[int],
        pixels: Callable[[int], np.ndarray[Any, Any]],
    ) -> None:
        for row in part:
            index = batch[row]
            rows[row] = pixels(index)

    def image(self, index: int) -> Image.Image:
        """Return one image in RGB, from the cache or its file."""
        cache = self._cache
        if cache is not None and cache.kind == "fitted":
            cache = None
        found = None if cache is None else cache.get(index)
        if isinstance(found, np.ndarray):
            return Image.fromarray(found)
        data = self.images.read(index) if found is None else found
        image = decode(data, self.images.path(index))
        if cache is not None and found is None:
            cache.put(index, data if cache.kind == "encoded" else np.asarray(image))
        return image


def open_cache(images: ImageDirectory, plan: LoadingPlan, name: str) -> ImageCache | None:
    """Return the cache of a plan, in the node's temporary folder; None if there is none."""
    if plan.cache == "none":
        return None
    run = "-".join(os.environ.get(key, "0") for key in ("RAYJOBS_RUN_ID", "RAYJOBS_ATTEMPT"))
    if run == "0-0":
        run = str(os.getpid())
    folder = os.path.join(tempfile.gettempdir(), f"rayjobs-images-{run.replace('/', '-')}-{name}")
    arena = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        return ImageCache(folder, len(images), arena=arena, kind=plan.cache)
    except OSError as error:
        print(f"no cache in {folder}: {error}; the training continues without one", flush=True)
        return None
