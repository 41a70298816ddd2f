"""Many calls leave nothing behind: as many tensors, patterns and plans are alive after them as before.

``benchmarks/soak.py`` measures the memory of 20,000 calls of the same tasks.
"""

import gc

import pytest
import torch

from benchmarks import soak
from gossamer.compiler.run.cache import PLANS
from gossamer.formats import Structure


def alive() -> dict[str, int]:
    gc.collect()
    found = gc.get_objects()
    kinds = {"tensors": torch.Tensor, "structures": Structure, "modules": torch.nn.Module}
    counts = {name: sum(issubclass(type(x), kind) for x in found) for name, kind in kinds.items()}
    return counts | {"plans": len(PLANS)}


@pytest.mark.parametrize("name", soak.TASKS)
def test_nothing_is_left_behind(name):
    task = soak.TASKS[name]()
    for n in range(30):
        task(n)
    before = alive()
    for n in range(30, 90):
        task(n)
    after = alive()
    # one more or less may wait for the next call; one for each call would be 60
    assert all(after[kind] <= before[kind] + 5 for kind in before), (before, after)
