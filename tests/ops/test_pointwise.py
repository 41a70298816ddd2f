"""Pointwise operators: patterns, fills, types and gradients."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.facts import OTHER_UNARY, ZERO_PRESERVING
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import SHAPES, check, dense_of, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
MATRIX = torch.tensor([[0.0, 3.0, 0.0], [-4.0, 0.0, 0.5]])


def matrix(format: gs.Format) -> SparseTensor:
    return gs.from_dense(MATRIX, format)


# -- examples that a person can check


@formats
def test_scaling_keeps_the_pattern(format):
    t = matrix(format)
    out = 2 * t / 4
    assert out.structure.same(t.structure)
    assert out.to_dense().tolist() == [[0.0, 1.5, 0.0], [-2.0, 0.0, 0.25]]


@formats
def test_a_sum_has_the_union_and_a_product_the_intersection(format):
    a = gs.from_dense(torch.tensor([[1.0, 2.0, 0.0, 0.0]]), gs.COO()).to_format(format)
    b = gs.from_dense(torch.tensor([[0.0, 5.0, 6.0, 0.0]]), gs.COO()).to_format(format)
    assert (a + b).to_dense().tolist() == [[1.0, 7.0, 6.0, 0.0]]
    assert (a - b).to_dense().tolist() == [[1.0, -3.0, -6.0, 0.0]]
    assert (a * b).to_dense().tolist() == [[0.0, 10.0, 0.0, 0.0]]
    if format.any_pattern:
        assert (a + b).mask().tolist() == [[True, True, True, False]]
        assert (a * b).mask().tolist() == [[False, True, False, False]]


@formats
def test_adding_a_number_is_dense(format):
    out = matrix(format) + 1
    assert not isinstance(out, SparseTensor)
    assert out.tolist() == [[1.0, 4.0, 1.0], [-3.0, 1.0, 1.5]]


@formats
def test_cosine_is_one_where_nothing_is_stored(format):
    out = matrix(format).cos()
    assert out[0, 0] == 1
    torch.testing.assert_close(out, MATRIX.cos())


@formats
def test_a_zero_that_is_not_stored_stays_zero_in_products_and_quotients(format):
    t = gs.from_dense(torch.tensor([[0.0, 0.0, 0.0, 0.0, 3.0]]), gs.COO()).to_format(format)
    for out in (t * torch.inf, t * torch.full((1, 5), torch.nan), t / torch.zeros(1, 5)):
        assert isinstance(out, SparseTensor)
        assert (out.to_dense()[~t.mask()] == 0).all()
        assert not out.to_dense()[0, 4].isfinite()


@formats
def test_comparison(format):
    t = matrix(format)
    assert (t > 0).to_dense().tolist() == [[False, True, False], [False, False, True]]
    assert dense_of(t == 0).tolist() == [[True, False, True], [False, True, False]]
    assert dense_of(t <= torch.ones(2, 3)).tolist() == [[True, False, True], [True, True, True]]
    assert dense_of(t != t).any().item() is False


@formats
def test_masked_fill(format):
    t = matrix(format)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    kept = t.masked_fill(mask, 0)
    assert kept.structure.same(t.structure)
    assert kept.to_dense().tolist() == [[0.0, 0.0, 0.0], [-4.0, 0.0, 0.5]]
    assert dense_of(t.masked_fill(mask, 7.0)).tolist() == [[7.0, 7.0, 0.0], [-4.0, 0.0, 0.5]]
    row = torch.tensor([False, True, False])
    assert t.masked_fill(row, 0).to_dense().tolist() == [[0.0, 0.0, 0.0], [-4.0, 0.0, 0.5]]


@formats
def test_dropout_drops_stored_values_and_scales_the_others(format):
    t = gs.from_dense(torch.ones(20, 20).tril(), format)
    out = F.dropout(t, 0.25)
    assert out.structure.same(t.structure)
    values = out.to_dense()[torch.ones(20, 20).tril() > 0]
    assert set(values.tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.1 < (values == 0).double().mean() < 0.4
    assert torch.equal(F.dropout(t, 0.25, training=False).to_dense(), t.to_dense())
    assert F.dropout(t, 1.0).to_dense().count_nonzero() == 0


# -- all of them against dense


@formats
@pytest.mark.parametrize(
    "name", ["abs", "neg", "sin", "tanh", "sqrt", "expm1", "log1p", "square", "relu", "gelu", "silu"]
)
def test_zero_preserving_functions(format, name):
    t = sample((5, 7), format)
    t = t.abs() if name == "sqrt" else t * 0.2
    function = getattr(torch, name, None) or getattr(F, name)
    out = check(function, t)
    assert isinstance(out, SparseTensor)
    assert out.structure.same(t.structure)


@pytest.mark.parametrize("name", sorted(ZERO_PRESERVING))
def test_what_is_called_zero_preserving_is(name):
    function = getattr(torch, name, None) or getattr(F, name, None) or getattr(torch.special, name[8:], None)
    assert function(torch.zeros(3)).tolist() == [0, 0, 0]


WITH_ARGUMENTS = {"threshold", "clamp", "clamp_min", "clamp_max", "pow", "float_power", "polygamma", "mvlgamma"}


@pytest.mark.parametrize("name", sorted(OTHER_UNARY - WITH_ARGUMENTS))
def test_other_functions_fill_what_is_not_stored(name):
    t = gs.from_dense(torch.tensor([[0.0, 0.5], [0.25, 0.0]], dtype=torch.float64), gs.CSR())
    function = getattr(torch, name, None) or getattr(F, name, None) or getattr(torch.special, name[8:], None)
    with gs.fallback("error"):
        out = function(t)
    torch.testing.assert_close(dense_of(out), function(t.to_dense()), equal_nan=True)


@shapes
@formats
def test_arithmetic_of_two_patterns(shape, format):
    a, b = sample(shape, format, seed=1), sample(shape, format, seed=2)
    for f in (torch.add, torch.sub, torch.mul):
        check(f, a, b)
    check(lambda x, y: torch.add(x, y, alpha=3), a, b)


@shapes
@formats
def test_arithmetic_with_a_dense_tensor(shape, format):
    a, b = sample(shape, format), torch.randn(shape, dtype=torch.float64).abs() + 1
    for f in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, lambda x, y: x < y):
        check(f, a, b, gradients=f in (torch.add, torch.mul, torch.div))
        check(f, b, a.abs() + 1, gradients=f in (torch.sub, torch.mul, torch.div))


@formats
def test_operands_are_broadcast(format):
    matrix, row = sample((4, 6), format, seed=1), sample((6,), format, seed=2)
    column = torch.randn(4, 1, dtype=torch.float64) + 3
    for f in (torch.add, torch.mul, torch.maximum):
        check(f, matrix, row)
        check(f, row, matrix)
        check(f, matrix, column)
        check(f, row, column)
    check(torch.div, matrix, column)


@formats
def test_a_dense_operand_may_be_strided(format):
    a, b = sample((4, 6), format), torch.randn(6, 8, dtype=torch.float64).t()[::2]
    assert not b.is_contiguous()
    check(torch.mul, a, b)
    check(torch.add, a, b)


@formats
def test_a_scalar_tensor_gets_its_gradient_from_all_places(format):
    t, s = sample((4, 6), format), torch.tensor(0.7, dtype=torch.float64)
    for f in (torch.add, torch.mul, torch.div, lambda t, s: s - t, lambda t, s: torch.clamp(t * 0, max=-1) * s):
        check(f, t, s)


@formats
def test_fused_forms_of_the_optimizers(format):
    a, b = sample((4, 6), format, seed=1), sample((4, 6), format, seed=2)
    positive = torch.rand(4, 6, dtype=torch.float64) + 1
    check(lambda *x: torch.addcmul(*x, value=0.5), a, b, sample((4, 6), format, seed=3))
    check(lambda *x: torch.addcdiv(*x, value=0.5), a, b, positive)
    check(lambda x, y: torch.lerp(x, y, 0.3), a, b)
    check(lambda x, y: torch.where(positive > 1.5, x, y), a, b)


def test_types_follow_torch():
    t = gs.from_dense(torch.eye(3), gs.CSR())
    assert (t * torch.ones(3, 3, dtype=torch.float64)).dtype == torch.float64
    assert (t * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32
    assert (t > 0).dtype == torch.bool
    assert (t.int() / 2).dtype == torch.float32
    scalar = gs.from_dense(torch.tensor(2.0), gs.CSR())
    with gs.fallback("silent"):
        assert (scalar * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float64
        assert (scalar.double() * torch.ones(3)).dtype == torch.float32


def test_shapes_that_do_not_fit_are_torchs_error():
    t = gs.from_dense(torch.eye(3), gs.COO())
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="must match the size"):
        t + torch.ones(4, 4)
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="must match the size"):
        t * gs.from_dense(torch.eye(4), gs.COO())


@pytest.mark.parametrize("format", [gs.CSR(), gs.BSR((2, 2)), gs.Masked()], ids=repr)
def test_bits_of_integers(format):
    x, y = torch.tensor([[0, 5], [-3, 0]]), torch.tensor([[6, 1], [0, 0]])
    a, b = gs.from_dense(x, format), gs.from_dense(y, format)
    dense = {
        "not": (~a, ~x), "and": (a & b, x & y), "or": (a | b, x | y), "xor": (a ^ b, x ^ y), "swapped": (3 & a, 3 & x),
        "or with a number": (3 | a, 3 | x),
    }  # fmt: skip
    for name, (ours, theirs) in dense.items():
        ours = ours.to_dense() if isinstance(ours, gs.SparseTensor) else ours
        assert torch.equal(ours, theirs), name
    assert torch.equal((~gs.from_dense(x != 0, format)), x == 0)  # of bools it is the logical one


def test_a_remainder_in_place():
    x = torch.tensor([[0.0, 5.0], [-3.0, 0.0]])
    t = gs.from_dense(x, gs.CSR())
    t %= 2
    assert torch.equal(t.to_dense(), torch.remainder(x, 2))


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.ELL(), gs.BSR((2, 2))])
def test_a_broadcast_operand_is_never_expanded(format):
    """Scaling rows and columns of a graph: 100,000 nodes squared are 40 GB."""
    torch.manual_seed(0)
    a = gs.sparsify(torch.randn(6, 8, dtype=torch.float64), "60%", format=gs.CSR()).to_format(format)
    rows = torch.randn(6, 1, dtype=torch.float64, requires_grad=True)
    columns = torch.randn(8, dtype=torch.float64, requires_grad=True)
    out = (rows * a / columns.exp()).to_dense()
    torch.testing.assert_close(out, rows * a.to_dense() / columns.exp())
    out.sum().backward()
    torch.testing.assert_close(rows.grad, (a.to_dense() / columns.exp()).sum(1, keepdim=True))
    torch.testing.assert_close(columns.grad, -(rows * a.to_dense() / columns.exp()).sum(0))
    size = 1_000_000
    place = torch.arange(size)
    large = gs.from_torch(torch.sparse_coo_tensor(torch.stack([place, place]), torch.ones(size), (size, size)))
    scaled = torch.arange(size)[:, None] * large  # 4 TB, if it were
    assert scaled.values()[[0, 5, -1]].tolist() == [0, 5, size - 1]
