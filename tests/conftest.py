"""What every test stands on: one thread, one seed, and no GPU test without a GPU."""

import os
import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # pytest-xdist already uses the cores; results must not hang on how many there are

# CI draws the same examples every time: a red build is then about the change, not about luck.
settings.register_profile("gossamer", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("gossamer")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same random numbers."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    return 0


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """What a test has compiled does not count towards the limit of recompilations of the tests after it."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters["frames"]:
        dynamo.reset()
        dynamo.utils.counters.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
