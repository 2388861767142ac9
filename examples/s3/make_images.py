"""Write small pictures in one folder per class, as torchvision's ImageFolder reads them.

python make_images.py pictures
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--per-class", type=int, default=12)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

chance = np.random.default_rng(arguments.seed)
for name, colour in (("blue", 2), ("green", 1), ("red", 0)):
    folder = arguments.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.per_class):
        pixels = chance.integers(0, 160, size=(16, 16, 3), dtype=np.uint8)
        pixels[..., colour] += 80
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
print(f"{3 * arguments.per_class} pictures are in {arguments.folder}")
