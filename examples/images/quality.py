"""Train the image component on two sets, and print its accuracy beside that of a linear model.

``python examples/images/quality.py digits|shapes [--quick]``: ``digits`` are the 1,797 scanned
digits of scikit-learn, ``shapes`` are generated (bright circles, squares, triangles and crosses of
any size, place and angle, in noise, on a dark ground: no single pixel tells them apart). Both are
written as images, trained by ``rayjobs images train`` and scored by ``rayjobs images score``; the
linear model is scikit-learn's logistic regression on the same pixels.
"""

import argparse
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

SHAPES = ("circle", "cross", "square", "triangle")
# A mirrored digit is another one, and most crops of a small shape have only a part of it.
COMMON = ["--batch-size", "32", "--augmentation", "none"]
TRAINING = {
    "digits": [*COMMON, "--epochs", "12", "--learning-rate", "0.02"],
    "shapes": [*COMMON, "--epochs", "8", "--learning-rate", "0.02", "--warmup-epochs", "1"],
}
SIZE = 32


def digits(quick: bool) -> list[tuple[str, Image.Image]]:
    """Return label and image of each scanned digit."""
    found = load_digits()
    count = 360 if quick else len(found.target)
    grey = (found.images[:count] * 255 / 16).astype(np.uint8)
    return [
        (str(label), Image.fromarray(one).resize((SIZE, SIZE), Image.Resampling.BICUBIC))
        for label, one in zip(found.target, grey, strict=False)
    ]


def shapes(quick: bool) -> list[tuple[str, Image.Image]]:
    """Return label and image of shapes in noise."""
    chance = np.random.default_rng(4)
    made = []
    for number in range(320 if quick else 2400):
        name = SHAPES[number % len(SHAPES)]
        made.append((name, _shape(name, chance)))
    return made


def _shape(name: str, chance: np.random.Generator) -> Image.Image:
    dark, bright = chance.integers(0, 100, 3), chance.integers(140, 256, 3)
    background, color = (tuple(int(one) for one in rgb) for rgb in (dark, bright))
    image = Image.new("RGB", (SIZE * 2, SIZE * 2), background)
    draw = ImageDraw.Draw(image)
    radius = chance.uniform(14, 22)
    x, y = chance.uniform(radius, SIZE * 2 - radius, 2)
    turned = chance.uniform(0, 2 * np.pi)

    def corners(angles: list[float], far: list[float]) -> list[tuple[float, float]]:
        return [
            (x + radius * r * np.cos(turned + a), y + radius * r * np.sin(turned + a))
            for a, r in zip(angles, far, strict=True)
        ]

    if name == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    elif name == "cross":
        angles = [k * np.pi / 2 + side for k in range(4) for side in (-0.3, 0.3, np.pi / 4)]
        draw.polygon(corners(angles, [1, 1, 0.42] * 4), fill=color)
    else:
        count = 4 if name == "square" else 3
        draw.polygon(
            corners([k * 2 * np.pi / count for k in range(count)], [1] * count), fill=color
        )
    small = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX)).astype(float)
    noisy = small + chance.normal(0, 20, small.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def rayjobs(*words: str) -> str:
    """Run a command of rayjobs; return what it prints."""
    program = str(Path(sysconfig.get_path("scripts")) / "rayjobs")
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def linear(folder: Path) -> float:
    """Return the accuracy of a linear model on the pixels."""

    def pixels(part: str) -> tuple[np.ndarray, list[str]]:
        files = sorted((folder / part).rglob("*.png"))
        rows = [np.asarray(Image.open(one).convert("RGB")).ravel() / 255 for one in files]
        return np.stack(rows), [one.parent.name for one in files]

    (inputs, labels), (others, expected) = pixels("train"), pixels("validation")
    scale = StandardScaler().fit(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the number of iterations: it is as good as it gets
        model = LogisticRegression(max_iter=300, C=0.01).fit(scale.transform(inputs), labels)
    return float(model.score(scale.transform(others), expected))


def component(name: str, folder: Path, words: list[str]) -> float:
    """Return the accuracy of the component's model, by its table of scores."""
    parts = ["--train", str(folder / "train"), "--validation", str(folder / "validation")]
    more = ["--image-size", str(SIZE), *TRAINING[name], *words]
    model = f"quality-{name}"
    job = rayjobs("images", "train", *parts, *more, "--register", model, "-q")
    rayjobs("wait", job)
    scored = rayjobs(
        *["images", "score", "--model", model, "--data", str(folder / "validation")],
        *["--format", "csv", "-q"],
    )
    rayjobs("wait", scored)
    rayjobs("download", scored, "-o", str(folder / "scores"))
    (table,) = (folder / "scores").rglob("scores.csv")
    as_text = pacsv.ConvertOptions(column_types={"label": "string", "Scored Labels": "string"})
    rows = pacsv.read_csv(table, convert_options=as_text)
    pairs = zip(rows["label"].to_pylist(), rows["Scored Labels"].to_pylist(), strict=True)
    return float(np.mean([label == found for label, found in pairs]))


def main() -> None:
    """Make the images, train and score, print both accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("digits", "shapes"))
    parser.add_argument("--quick", action="store_true", help="Few images and epochs.")
    given = parser.parse_args()
    made = digits(given.quick) if given.data == "digits" else shapes(given.quick)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (label, image) in enumerate(made):
            target = folder / "raw" / label / f"{number:04}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            image.save(target)
        images = ["images", "convert", str(folder / "raw"), str(folder / "data")]
        print(rayjobs(*images, "--validation-share", "0.2"), flush=True)
        words = ["--epochs", "4"] if given.quick else []
        accuracy = component(given.data, folder / "data", words)
        print(f"{given.data}: component {accuracy:.4f}, linear {linear(folder / 'data'):.4f}")


if __name__ == "__main__":
    sys.exit(main())
