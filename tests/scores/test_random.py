from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.scores import Random


def test_random_is_splitmix64() -> None:
    """Against plain Python integers: the result must never change, for masks are reproduced by their seed."""

    def finish(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    assert finish(1234567 + golden) == 6457827717110365317  # the published first output for seed 1234567
    for seed in (0, 7, -1, 2**64 + 7):
        start = finish((seed % 2**64 + golden) % 2**64)
        expected = [((finish((start + (i + 1) * golden) % 2**64) >> 41) + 0.5) / 2**23 for i in range(50)]
        assert Random(seed)(torch.empty(5, 10)).flatten().tolist() == expected


@given(st.lists(st.integers(0, 9), max_size=6), st.integers())
def test_random_in_pieces(sizes: list[int], seed: int) -> None:
    pieces, offset = [], 0
    for size in sizes:
        pieces.append(Random(seed)(torch.empty(size), offset=offset))
        offset += size
    assert torch.equal(torch.cat([*pieces, torch.empty(0)]), Random(seed)(torch.empty(offset)))


def test_random_is_uniform_and_seeds_differ() -> None:
    u = Random(0)(torch.empty(1 << 16))
    assert 0 < u.min() and u.max() < 1
    counts = torch.histc(u, 16, 0, 1)
    assert ((counts - 4096) ** 2 / 4096).sum() < 40  # chi square, 15 degrees of freedom: p < 0.001
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1]) < 0.02
    assert abs(torch.corrcoef(torch.stack([u, Random(1)(u)]))[0, 1]) < 0.02


def test_seed_must_be_an_integer() -> None:
    with pytest.raises(TypeError, match="seed"):
        Random("now")  # type: ignore[arg-type]
