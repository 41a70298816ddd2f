"""Windows of columns: how entries are spread over them, and which are chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kernels.int8.windows import _COSTS, plan, schedule


def test_by_hand() -> None:
    kept = torch.zeros(32, 96, dtype=torch.bool)
    kept[0, :5] = kept[1, 90:] = kept[16, 33] = True
    took, steps = schedule(kept, 32, 64)
    assert took.sum(1)[[0, 1, 16]].tolist() == [5, 6, 1] and steps.sum(1).tolist() == [4, 1]


@given(st.integers(0, 2**32 - 1), st.sampled_from([(32, 64), (16, 16), (40, 64), (8, 32)]))
def test_every_entry_is_taken_in_a_window_that_shows_it(seed: int, windows: tuple[int, int]) -> None:
    kept = torch.rand(16, 150, generator=torch.Generator().manual_seed(seed)) < 0.2
    took, steps = schedule(kept, *windows)
    assert torch.equal(took.sum(1), kept.sum(1))
    assert bool((took <= 4 * steps.repeat_interleave(16, 0)).all())


@pytest.mark.parametrize("isa", list(_COSTS))
@pytest.mark.parametrize(("tall", "wide"), [(1, 1), (4, 1), (1, 4), (4, 4)])
@pytest.mark.parametrize("shape", [(0, 8), (16, 0), (16, 1), (48, 200)])
def test_every_pattern_has_windows(isa: str, tall: int, wide: int, shape: tuple[int, int]) -> None:
    found = plan(torch.rand(shape) < 0.3, tall, wide, isa)
    assert 0 < found.stride <= found.window <= 64 and found.stride % wide == found.window % wide == 0
