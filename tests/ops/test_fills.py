"""fill=: semirings over stored entries, and any other value by dense copies."""

import itertools

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.semiring import semiring

INF = float("inf")
OTHERS = ["min: ij -> i", "min: ij -> j", "min: ij ->", "min: ij + i + j -> j", "min: ij + 2 -> ij", "min: ij -> ji"]
FORMATS = [gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.BSR((2, 2)), gs.ELL(), gs.Masked(), None]


def operand(shape, format, seed, density=0.4):
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < density
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * kept
    return x if format is None else gs.from_dense(x, format)


def dense(t, fill):
    return torch.where(t.mask(), t.to_dense(), fill) if isinstance(t, gs.SparseTensor) else t


def test_shortest_paths_by_hand():
    roads = torch.tensor([[0.0, 2.0, 9.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    a = gs.from_dense(roads, gs.CSR())
    two = gs.einsum("min: ik + kj -> ij", a, a, fill=INF)
    assert two.tolist() == [[10.0, INF, 5.0], [4.0, INF, INF], [INF, 3.0, 10.0]]


@pytest.mark.parametrize("levels", [("bitmap", "compressed"), ("compressed", "bitmap"), ("dense", "bitmap")])
def test_places_of_a_bitmap_without_an_entry_are_not_zeros(levels):
    """They were, where a bitmap is next to another kind of level: the minimum over b + 0 was less than inf."""
    b = operand((6, 8), gs.Format(*levels, order=(1, 0)), 1)
    for a in (operand((5, 6), gs.CSR(), 0), operand((5, 6), None, 0), operand((5, 6), gs.Format(*levels), 0)):
        got = gs.einsum("min: ik + kj -> ij", a, b, fill=INF)
        want = interpret(parse("min: ik + kj -> ij", (2, 2)), [dense(a, INF), dense(b, INF)])
        assert torch.equal(got, want)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(FORMATS, FORMATS)), ids=str)
def test_products_of_matrices(left, right):
    if left is None and right is None:
        return
    a, b = operand((6, 8), left, 0), operand((8, 4), right, 1)
    for head, fill in (("min", INF), ("max", -INF)):
        expression = f"{head}: ik + kj -> ij"
        want = interpret(parse(expression, (2, 2)), [dense(a, fill), dense(b, fill)])
        assert torch.equal(gs.einsum(expression, a, b, fill=fill), want)


@pytest.mark.parametrize("expression", OTHERS)
def test_other_expressions(expression):
    tensors = [operand((6, 8), gs.CSR(), 0, 0.1), operand((6,), None, 1), operand((8,), None, 2)]
    tensors = tensors[: expression.count("+") + 1] if "i + j" in expression else tensors[:1]
    want = interpret(parse(expression, [t.dim() for t in tensors]), [dense(t, INF) for t in tensors])
    assert torch.equal(gs.einsum(expression, *tensors, fill=INF), want)


def test_any_other_fill_is_computed_on_dense_copies():
    a = operand((6, 8), gs.CSR(), 0)
    with gs.fallback("silent"):
        assert torch.allclose(gs.einsum("ij -> i", a, fill=1.0), dense(a, 1.0).sum(1))
        assert torch.equal(gs.einsum("max: ij -> i", a, fill=INF), torch.full((6,), INF, dtype=torch.float64))
    assert semiring(parse("min: ij * ij -> i", (2, 2)), INF) is None
    assert semiring(parse("min: ij + 0 -> i", (2,)), INF) is None


def test_gradients():
    a, b = operand((6, 8), gs.CSR(), 0).requires_grad_(), operand((8, 4), gs.CSR(), 1)
    with gs.fallback("silent"):
        got = gs.einsum("min: ik + kj -> ij", a, b, fill=INF)
    got[got.isfinite()].sum().backward()
    assert int(a.grad.values().sum()) == int(got.isfinite().sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types(dtype):
    a = operand((6, 8), gs.CSR(), 0).to(dtype)
    got = gs.einsum("max: ij + j -> i", a, torch.ones(8, dtype=dtype), fill=-INF)
    assert got.dtype == dtype and torch.equal(got, (dense(a, -INF) + 1).amax(1))


def test_into_a_tensor_and_refused():
    a = operand((6, 8), gs.CSR(), 0)
    out = torch.zeros(6, dtype=torch.float64)
    assert gs.einsum("min: ij -> i", a, out=out, fill=INF) is out and torch.equal(out, dense(a, INF).amin(1))
    with pytest.raises(ValueError, match="is dense"):
        gs.einsum("min: ik + kj -> ij", a, a.t(), out=gs.CSR(), fill=INF)
    with pytest.raises(TypeError, match="floating"):
        gs.einsum("min: ij -> i", gs.from_dense(torch.eye(2, dtype=torch.int64), gs.CSR()), fill=INF)


def test_a_large_product_visits_what_is_stored():
    keys = torch.arange(0, 40_000_000, 40_001)
    structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys, (20_000, 20_000))
    a = gs.SparseTensor(torch.ones(keys.numel()), structure)
    got = gs.einsum("min: ij + j -> i", a, torch.zeros(20_000), fill=INF)
    assert int(got.isfinite().sum()) == int((a.structure.arrays["pos1"].diff() > 0).sum())
