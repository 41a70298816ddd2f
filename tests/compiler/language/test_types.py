"""Types of results: those of torch, for every pair of types."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.types import types

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]  # fmt: skip


def found(text, *given):
    words = "".join(c if c in "ij" else " " for c in text.split("->")[0]).split()
    return types(parse(text, [len(w) for w in words]), given)


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_products_and_sums_of_pairs(a, b):
    x, y = torch.ones(2, dtype=a), torch.ones(2, dtype=b)
    assert found("i * i -> i", a, b).result == (x * y).dtype
    assert found("i + i -> i", a, b).result == (x + y).dtype
    assert found("i + i -> ", a, b).result == (x + y).sum().dtype


def test_computed_in():
    assert found("ij,j->i", torch.float16, torch.float16) == (torch.float32, torch.float16)
    assert found("ij,j->i", torch.int8, torch.int8) == (torch.int32, torch.int8)
    assert found("ij->i", torch.int32) == (torch.int64, torch.int64)
    assert found("ij->i", torch.complex64).compute is None
    assert found("i + 0.5 -> i", torch.int32).result == torch.float32


def test_integers_that_would_wrap_around_have_no_kernel():
    assert found("i * i + i -> i", torch.int8, torch.int8, torch.float32).compute is None  # 100 * 100 wraps in int8
    assert found("i + i -> i", torch.int32, torch.float32).compute == torch.float32


@pytest.mark.parametrize(
    "text, given, why",
    [
        ("mean: ij->i", (torch.int32,), "a mean of int32 is refused, as by torch: convert with .float()"),
        ("ij,j->i", (torch.bool, torch.bool), "bools can't be contracted, as in torch.einsum: convert with .int()"),
        ("max: ij->i", (torch.complex64,), "no such operation for complex64, which has no order"),
        ("i - i -> i", (torch.bool, torch.bool), "torch has no such operation for bool: "),
    ],
)
def test_refused(text, given, why):
    words = "".join(c if c in "ij" else " " for c in text.split("->")[0].split(":")[-1]).split()
    with pytest.raises(TypeError) as error:
        types(parse(text, [len(w) for w in words]), given)
    assert why in str(error.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize(("text", "want"), [
    ("max: -ij ->", lambda d: (-d).max()), ("min: ij - 3 * ij ->", lambda d: (d - 3 * d).min()),
    ("max: ij ->", lambda d: d.max()),
])  # fmt: skip
def test_small_integers_wrap_around_before_they_are_reduced(dtype, text, want):
    d = torch.tensor([[1, 0, 100], [0, 2, 0]], dtype=dtype)
    a = gs.from_dense(d, gs.CSR())
    with gs.fallback("silent"):
        got = gs.einsum(text, *[a] * text.count("ij"))
    assert torch.equal(got.to_dense() if isinstance(got, gs.SparseTensor) else got, want(d))
