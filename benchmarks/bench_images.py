"""Compares image classifiers with a hand-written loop, torchvision's loader, and one process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.figures import Figure, median
from rayjobs.images.component.imagemodels import networks
from rayjobs.images.component.imagemodels.cache import ImageCache
from rayjobs.images.component.imagemodels.decoding import Preprocessing
from rayjobs.images.component.imagemodels.directory import ImageDirectory, open_labeled
from rayjobs.images.component.imagemodels.loading import Loader, make_plan
from rayjobs.images.component.imagemodels.normalizing import Normalizer
from rayjobs.images.component.imagemodels.ranks import Ranks
from rayjobs.images.component.imagemodels.training import Settings, Training, set_up_determinism

ROOT = Path(__file__).parents[1]
BATCH = 16
CLASSES = 4
WARM = 2
"""The number of batches before the clock starts."""
SIZE = (500, 375)
"""Width and height of the JPEG files: about the average of ImageNet."""
MEAN, STD = Preprocessing().mean, Preprocessing().std


def measure(*, rounds: int, quick: bool) -> list[Figure]:
    """Measure the loop, the loader and two processes; ours and the peer alternate."""
    with tempfile.TemporaryDirectory(prefix="bench-images-") as name, contextlib.chdir(name):
        folder = Path(name)
        images = write_photos(folder / "photos", 48 if quick else 480)
        return [
            *_loops(rounds, quick, images),
            *_loaders(rounds, images, folder),
            *_curves(images, quick, folder),
        ]


def write_photos(root: Path, count: int) -> ImageDirectory:
    """Write parts of two photos of scikit-learn as JPEG files of four classes."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(one) for one in load_sample_images().images]
    chance = np.random.default_rng(1)
    for number in range(count):
        photo = photos[number % 2]
        width = int(chance.integers(300, photo.height * 4 // 3))
        height = width * 3 // 4
        left = int(chance.integers(0, photo.width - width + 1))
        top = int(chance.integers(0, photo.height - height + 1))
        box = (left, top, left + width, top + height)
        target = root / f"class-{number % CLASSES}" / f"{number:04}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        photo.resize(SIZE, Image.Resampling.BICUBIC, box=box).save(target, quality=90)
    return open_labeled(str(root))


# -- the loop ------------------------------------------------------------------------------------

Batch = tuple[torch.Tensor, torch.Tensor]


class _Recorded:
    """A loader whose batches are in memory already."""

    def __init__(self, images: ImageDirectory, batches: Sequence[Batch]) -> None:
        self.images = images
        self.wait_s = 0.0
        self._batches = batches

    def training(self, _batches: object, **_: object) -> Iterator[Batch]:
        return iter(self._batches)

    def validation(self, _batches: object) -> Iterator[Batch]:
        return iter(self._batches[:1])


class _OnRecorded(Training):
    """A training on batches that are in memory."""

    batches: Sequence[Batch] = ()

    def _loader(self, part: str, closing: contextlib.ExitStack) -> Any:
        del closing
        return _Recorded(self._images[part], self.batches)


def _loops(rounds: int, quick: bool, images: ImageDirectory) -> list[Figure]:
    """Measure images per second of training on the CPU, for two image sizes."""
    figures = []
    for size, count in ((64, 60), (224, 14)):
        chosen = range(BATCH * (4 if quick else count))
        made = torch.Generator().manual_seed(size)
        batches = [
            (
                torch.randint(0, 256, (BATCH, size, size, 3), dtype=torch.uint8, generator=made),
                torch.randint(0, CLASSES, (BATCH,), generator=made),
            )
            for _ in range(0, len(chosen), BATCH)
        ]
        part = ImageDirectory(
            images.root,
            images.classes,
            tuple(images.files[one % len(images)] for one in chosen),
            tuple(images.labels[one % len(images)] for one in chosen),
        )
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(_our_loop(part, batches, size))
            theirs.append(_hand_written(batches))
        figures.append(
            Figure(
                f"training of resnet18 on the CPU, images of {size} × {size}",
                "images/s", median(ours), median(theirs), "a hand-written loop", share=0.97,
            )
        )  # fmt: skip
    return figures


def _our_loop(images: ImageDirectory, batches: Sequence[Batch], size: int) -> float:
    set_up_determinism(1)
    work = _OnRecorded(
        networks.build("resnet18", CLASSES),
        images,
        images,
        how=Preprocessing(image_size=size),
        settings=Settings(epochs=1, batch_size=BATCH),
        ranks=Ranks(),
    )
    work.batches = batches
    times: list[float] = []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):  # for its checkpoints
        work.run(lambda epoch, _: times.append(time.perf_counter()) if epoch == 0 else None)
    torch.use_deterministic_algorithms(False)
    return BATCH * (len(batches) - WARM) / (times[len(batches) - 1] - times[WARM - 1])


def _hand_written(batches: Sequence[Batch]) -> float:
    torch.manual_seed(1)
    model = networks.build("resnet18", CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    mean = torch.tensor(MEAN).view(1, 3, 1, 1) * 255
    std = torch.tensor(STD).view(1, 3, 1, 1) * 255
    model.train()
    began = 0.0
    total, right = 0.0, 0
    for number, (pixels, labels) in enumerate(batches):
        if number == WARM:
            began = time.perf_counter()
        inputs = (pixels.permute(0, 3, 1, 2).float().contiguous() - mean) / std
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = loss_of(outputs, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        right += int((outputs.argmax(1) == labels).sum())
    return BATCH * (len(batches) - WARM) / (time.perf_counter() - began)


# -- the loader ----------------------------------------------------------------------------------


def _loaders(rounds: int, images: ImageDirectory, folder: Path) -> list[Figure]:
    """Measure images per second from JPEG files to normalized batches, on two cores."""
    batches = [list(part) for part in torch.arange(len(images)).split(BATCH * 2)]
    batches = [[int(one) for one in part] for part in batches]
    _check_pixels(images, batches)
    first, later, theirs = [], [], []
    for number in range(rounds):
        theirs.append(_torchvision(images))
        one, more = _our_loader(images, batches, folder / f"cache-{number}")
        first.append(one)
        later.append(more)
    size = f"JPEG files of {SIZE[0]} × {SIZE[1]}"
    peer = "ImageFolder and DataLoader, 2 workers"
    return [
        Figure(f"loader, {size}, first epoch", "images/s", median(first), median(theirs), peer,
               share=1.5),
        Figure("the same, later epochs", "images/s", median(later), median(theirs), peer,
               share=1.5),
    ]  # fmt: skip


def _our_loader(
    images: ImageDirectory, batches: Sequence[Sequence[int]], folder: Path
) -> tuple[float, float]:
    """Return images per second of the first epoch, which fills the cache, and of later ones."""
    began = time.perf_counter()
    plan = make_plan(images, Preprocessing(), threads=2, is_fixed=True)
    cache = ImageCache(str(folder), len(images), arena=0, kind=plan.cache)
    loader = Loader(images, Preprocessing(), plan, cache=cache)
    normalize = Normalizer(Preprocessing(), torch.device("cpu"))
    speeds = []
    for _ in range(3):
        for pixels, _labels in loader.validation(batches):
            normalize(pixels)
        speeds.append(len(images) / (time.perf_counter() - began))
        began = time.perf_counter()
    loader.close()
    cache.remove()
    return speeds[0], median(speeds[1:])


def _torchvision(images: ImageDirectory) -> float:
    """Return images per second of the recipe that torchvision's documentation shows."""
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    data = ImageFolder(images.root, transforms.Compose([*steps, transforms.Normalize(MEAN, STD)]))
    loader = DataLoader(data, batch_size=BATCH * 2, num_workers=2, persistent_workers=True)
    iterator = iter(loader)  # starts the workers, which is not counted
    next(iterator)
    del iterator
    began = time.perf_counter()
    for _ in loader:
        pass
    return len(images) / (time.perf_counter() - began)


def _check_pixels(images: ImageDirectory, batches: Sequence[Sequence[int]]) -> None:
    """End the program if a pixel differs from torchvision's."""
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]
    data = ImageFolder(images.root, transforms.Compose(steps))
    loader = Loader(images, Preprocessing(), make_plan(images, Preprocessing(), cache="none"))
    for batch, (pixels, labels) in zip(batches, loader.validation(batches), strict=True):
        for place, index in enumerate(batch):
            expected, label = data[index]
            if int(labels[place]) != label or not torch.equal(
                pixels[place].permute(2, 0, 1), expected
            ):
                raise SystemExit(f"{images.path(index)}: the loader's pixels are not torchvision's")
    loader.close()


# -- two processes -------------------------------------------------------------------------------


NUDGE = 1e-7
"""The relative change of the initial weights: about the rounding error of float32."""


def _curves(images: ImageDirectory, quick: bool, folder: Path) -> list[Figure]:
    """Return the largest differences between the losses of two processes and those of one.

    They are measured in float64, where only a defect can cause a difference; in float32, where the
    single process adds up its gradients as two processes do; and in float32 without that. In the
    last case, the rounding of one sum can move an input of a ReLU across zero, and change the
    curve. One process with slightly different weights shows how large this effect is without a
    second process; two processes of a hand-written loop show the effect, too.
    """
    epochs = 1 if quick else 3
    root = _third(images, folder / "third")

    def curve(processes: int, kind: str, *, nudge: float = 0.0, parts: int = 1) -> list[float]:
        words = (root, str(epochs), kind, str(nudge), str(parts))
        return _curve(words, processes=processes)

    def apart(one: list[float], other: list[float]) -> float:
        return max(abs(mine - theirs) for mine, theirs in zip(one, other, strict=True))

    alone, together = curve(1, "float32"), curve(2, "float32")
    exact = apart(curve(1, "float64"), curve(2, "float64"))
    moved = apart(alone, curve(1, "float32", nudge=NUDGE))
    name = "losses of 2 DDP processes, less those of one process with the same global batch"
    return [
        Figure(f"{name}, in float64", "at most", exact, most=1e-4),
        Figure(
            "the same, in float32, of one process with --gradient-parts 2", "at most",
            apart(curve(1, "float32", parts=2), together), most=1e-4,
        ),
        Figure(
            "the same, in float32, of one process without it", "at most",
            apart(alone, together), moved,
            f"one process, its initial weights larger by {NUDGE:g} of their value",
        ),
        Figure(
            "the same, of a hand-written loop with torch's DDP", "at most",
            apart(curve(1, "by hand"), curve(2, "by hand")),
        ),
    ]  # fmt: skip


def _third(images: ImageDirectory, folder: Path) -> str:
    """Return a folder of links to every third image."""
    for number, file in enumerate(images.files):
        if number % 3 == 0:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).symlink_to(Path(images.root).resolve() / file)
    return str(folder)


class _InDouble(nn.Module):
    """A network that computes in float64."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(images.double())
        return result


def _curve(words: Sequence[str], *, processes: int) -> list[float]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    shared |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench_images", *words],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    texts = [one.communicate()[0] for one in ranks]
    if any(one.returncode for one in ranks):
        raise SystemExit(f"a training of {processes} processes failed; see above")
    curve: list[float] = json.loads(texts[0].strip().splitlines()[-1])
    return curve


def _rank(root: str, epochs: int, kind: str, nudge: float, parts: int) -> None:
    """Train as one of the processes; the first one prints the losses of each epoch."""
    torch.set_num_threads(1)
    ranks = Ranks("gloo" if os.environ["WORLD_SIZE"] != "1" else None)
    set_up_determinism(1)
    module = networks.build("resnet18", CLASSES)
    if kind == "by hand":
        losses = _by_hand(module, root, epochs, ranks)
    else:
        losses = _by_component(module, root, epochs, kind, nudge, parts, ranks)
    if ranks.is_first:
        print(json.dumps(losses), flush=True)
    ranks.leave()


def _by_hand(module: nn.Module, root: str, epochs: int, ranks: Ranks) -> list[float]:
    """Return the training losses of the loop in PyTorch's DDP tutorial, with batches of 32."""
    steps = [transforms.Resize(73), transforms.CenterCrop(64), transforms.ToTensor()]
    data = ImageFolder(root, transforms.Compose([*steps, transforms.Normalize(MEAN, STD)]))
    order = torch.Generator().manual_seed(1)
    network = DistributedDataParallel(module) if ranks.world > 1 else module
    optimizer = torch.optim.SGD(network.parameters(), lr=0.002, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _ in range(epochs):
        total = torch.zeros(1, dtype=torch.float64)
        for batch in torch.randperm(len(data), generator=order).split(32):
            mine = [data[int(one)] for one in batch[ranks.rank :: ranks.world]]
            inputs = torch.stack([image for image, _ in mine])
            labels = torch.tensor([label for _, label in mine])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(mine)
        losses.append(float(ranks.sum(total)) / len(data))
    return losses


def _by_component(
    module: nn.Module,
    root: str,
    epochs: int,
    kind: str,
    nudge: float,
    parts: int,
    ranks: Ranks,
) -> list[float]:
    """Return training and validation losses of the component's training."""
    with torch.no_grad():
        for weights in module.parameters():
            weights.mul_(1 + nudge)
    work = Training(
        module if kind == "float32" else _InDouble(module),
        images := open_labeled(root),
        images,
        how=Preprocessing(image_size=64),
        settings=Settings(
            epochs=epochs,
            batch_size=32 // ranks.world,
            learning_rate=0.002 / ranks.world,
            gradient_parts=parts,
        ),
        ranks=ranks,
    )
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        done = work.run()
    return [*done.training_losses, *done.losses]


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
