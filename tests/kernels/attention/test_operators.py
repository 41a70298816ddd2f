"""Attention in float32 on a CPU: against torch and float64, masks, strides, bad input, threads, traces."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer import native
from gossamer.kernels.attention.operators import attention, takes

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
operator = torch.ops.gossamer.attention.default


def heads(batch: int, count: int, tokens: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as one projection writes them."""
    whole = torch.randn(batch, tokens, 3 * count * depth)
    q, k, v = (part.view(batch, tokens, count, depth).transpose(1, 2) for part in whole.split(count * depth, -1))
    return q, k, v


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = q.double() @ k.double().transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.nan_to_num(scores.softmax(3)) @ v.double()


def test_by_hand() -> None:
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 5.0], [0.0, 7.0]]]])  # scores 1 and 0
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    share = 1 / (1 + torch.e**-1)
    out = attention(q, k, v, scale=1.0)
    torch.testing.assert_close(out, torch.tensor([[[[10 * share, 10 * (1 - share)]]]]))
    assert torch.equal(attention(q, k, v, torch.tensor([[[[False, True]]]])), v[:, :, 1:])
    assert torch.equal(attention(q, k, v, torch.tensor([[[[False, False]]]])), torch.zeros(1, 1, 1, 2))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, n) for n in (3, 3, 70, 70)]),
    depth=st.sampled_from([1, 3, 8, 16, 20, 32, 64]),
    masked=st.sampled_from(["none", "all", "keys", "any", "one"]),
    seed=st.integers(0, 99),
)
def test_within_the_rounding_of_float32(sizes: tuple[int, int, int, int], depth: int, masked: str, seed: int) -> None:
    torch.manual_seed(seed)
    batch, count, queries, keys = sizes
    q, (_, k, v) = heads(batch, count, queries, depth)[0], heads(batch, count, keys, depth)
    mask = {
        "none": None,
        "all": torch.ones(batch, 1, queries, keys, dtype=torch.bool),
        "keys": torch.rand(batch, 1, 1, keys) < 0.6,
        "any": torch.rand(batch, 1, queries, keys) < 0.6,
        "one": (torch.rand(1, 1, keys, queries) < 0.6).transpose(2, 3),
    }[masked]
    out, want = attention(q, k, v, mask), exact(q, k, v, mask, depth**-0.5)
    # scores are sums of depth terms; the softmax turns an error of a score into a relative one
    bound = (depth * float(q.abs().amax() * k.abs().amax()) + keys + 20) * 2.0**-23
    size = exact(q, k, v.abs(), mask, depth**-0.5)
    assert out.shape == want.shape and bool(((out.double() - want).abs() <= bound * size + 1e-30).all())


def test_the_result_is_in_the_order_of_the_next_projection() -> None:
    out = attention(*heads(2, 3, 5, 8))
    assert out.stride() == (5 * 24, 8, 24, 1)
    assert out.transpose(1, 2).reshape(2, 5, 24).data_ptr() == out.data_ptr()


def test_any_strides_and_no_tokens() -> None:
    q, k, v = (torch.randn(2, 8, 5, 3).transpose(1, 3) for _ in range(3))  # the last dimension has a stride
    torch.testing.assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    empty = torch.zeros(2, 3, 0, 8)
    assert attention(empty, empty, empty).shape == (2, 3, 0, 8)
    some = torch.randn(2, 3, 4, 8)
    assert torch.equal(attention(some, empty, empty), torch.zeros(2, 3, 4, 8))


def test_numbers_that_are_not_finite() -> None:
    q, k, v = (t.contiguous() for t in heads(1, 2, 40, 16))
    for bad in (torch.nan, torch.inf, -torch.inf):
        changed = q.clone()
        changed[0, 1, 33, 5] = bad
        out = attention(changed, k, v)
        wrong = torch.zeros(1, 2, 40, 16, dtype=torch.bool)
        wrong[0, 1, 33] = True
        assert torch.equal(out.isnan(), wrong)
    assert bool(attention(q * 1e15, k, v).isfinite().all())  # scores far apart: one key each


@pytest.mark.parametrize("tokens", [7, 64, 130])
def test_threads_change_no_bit(tokens: int) -> None:
    q, k, v = heads(3, 4, tokens, 32)
    one = attention(q, k, v)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(attention(q, k, v), one)
        finally:
            torch.set_num_threads(1)


def test_what_it_does_not_take() -> None:
    x = torch.zeros(2, 3, 4, 8)
    assert takes(x, x, x, None) is None and takes(x, x, x, torch.ones(1, 1, 4, 4, dtype=torch.bool)) is None
    assert "float32" in str(takes(x.double(), x, x, None))
    assert "same batch" in str(takes(x, x[:, :1], x[:, :1], None))
    assert "4096 keys" in str(takes(x, x.new_zeros(2, 3, 5000, 8), x.new_zeros(2, 3, 5000, 8), None))
    with pytest.raises(ValueError, match=r"bool \[batch, 1, queries, keys\] is taken"):
        attention(x, x, x, torch.zeros(2, 3, 4, 4))
    with pytest.raises(RuntimeError, match="k and v must have the same number of tokens"):
        operator(x, x, x[:, :, :2], None, 1.0)
    with pytest.raises(RuntimeError, match="mask must be bool"):
        operator(x, x, x, torch.ones(2, 1, 4, 3, dtype=torch.bool), 1.0)


def test_traces() -> None:
    q, k, v = heads(2, 3, 9, 8)
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    torch.library.opcheck(operator, (q, k, v, mask, 0.5))
    compiled = torch.compile(lambda q, k, v: operator(q, k, v, None, 0.5) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), operator(q, k, v, None, 0.5) + 1)
