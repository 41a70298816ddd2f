from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.scores import Fisher


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(1, 6))
def test_fisher_is_the_inverse(block: int, rows: int, columns: int, batches: int) -> None:
    generator = torch.Generator().manual_seed(block + 7 * columns)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    grads = torch.randn(batches, rows, columns, generator=generator, dtype=torch.float64)
    rated = Fisher(block=block, damp=1e-2)(weight, grads=grads)
    for row in range(rows):
        for start in range(0, columns, block):
            g = grads[:, row, start : start + block]
            f = g.T @ g / batches + 1e-2 * torch.eye(g.shape[1], dtype=torch.float64)
            expected = weight[row, start : start + block] ** 2 / (2 * torch.linalg.inv(f).diagonal())
            assert torch.allclose(rated[row, start : start + block], expected, rtol=1e-8)


def test_fisher_with_tiny_damping_and_large_layers() -> None:
    weight, grads = torch.randn(64, 96), torch.randn(40, 64, 96) * 1e-3
    rated = Fisher(block=16)(weight, grads=grads)
    assert rated.isfinite().all() and (rated >= 0).all()
    assert torch.allclose(Fisher(block=16)(weight[3:5], grads=grads[:, 3:5]), rated[3:5], rtol=1e-5)


def test_fisher_errors() -> None:
    for bad in ({"block": 0}, {"damp": 0.0}, {"damp": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Fisher(**bad)
    with pytest.raises(TypeError, match="integer"):
        Fisher(block=2.0)  # type: ignore[arg-type]
