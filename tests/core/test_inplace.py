"""In place: torch's dense result at the stored positions of the target, zero elsewhere."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)

OPERATORS = {
    "scalar": lambda x, y: x.mul_(3),
    "add": lambda x, y: x.add_(y, alpha=0.5),
    "mul": lambda x, y: x.mul_(y),
    "div": lambda x, y: x.div_(y.abs() + 1),
    "lerp": lambda x, y: x.lerp_(y, 0.25),
    "addcmul": lambda x, y: x.addcmul_(y, y, value=2),
    "addcdiv": lambda x, y: x.addcdiv_(y, y * y + 1, value=2),
    "row": lambda x, y: x.add_(y[0]),
    "function": lambda x, y: x.sin_(),
    "not zero at zero": lambda x, y: x.cos_(),
    "clamp": lambda x, y: x.clamp_(0.1, 0.5),
    "fill": lambda x, y: x.fill_(7),
    "zero": lambda x, y: x.zero_(),
    "copy": lambda x, y: x.copy_(y),
    "augmented": lambda x, y: x.__iadd__(y),
    "layer": lambda x, y: F.leaky_relu(x, 0.1, inplace=True),
    "fallback": lambda x, y: x.cumsum_(1),
    "with itself": lambda x, y: x.mul_(x),
}
operators = pytest.mark.parametrize("f", OPERATORS.values(), ids=OPERATORS)


def pair(format, dense_update):
    x = sample((5, 6), format)
    y = torch.randn(5, 6, dtype=torch.float64)
    return x, y if dense_update else sample((5, 6), format, density=0.6, seed=9)


@formats
@operators
@pytest.mark.parametrize("dense_update", [True, False], ids=["dense", "sparse"])
def test_without_gradients(format, f, dense_update):
    x, y = pair(format, dense_update)
    mask, dense = x.mask(), x.to_dense()
    with gs.fallback("silent"):
        assert f(x, y) is x
        f(dense, y if dense_update else y.to_dense())
    assert x.format == format
    assert torch.equal(x.mask(), mask)
    torch.testing.assert_close(x.to_dense(), torch.where(mask, dense, 0))


@formats
@pytest.mark.parametrize("name", [n for n in OPERATORS if n != "with itself"])  # torch itself can't do that one
def test_with_gradients(format, name):
    f = OPERATORS[name]
    x, y = pair(format, True)
    x, y = x.requires_grad_(), y.requires_grad_()
    leaf, other = (t.detach().clone().requires_grad_() for t in (x.to_dense(), y))
    weight = torch.arange(30, dtype=torch.float64).view(5, 6)
    with gs.fallback("silent"):
        moved = f(x.clone(), y)
        assert isinstance(moved, SparseTensor)
        (moved.to_dense() * weight).sum().backward()
        (torch.where(x.mask(), f(leaf.clone(), other), 0) * weight).sum().backward()
    torch.testing.assert_close(x.grad.to_dense(), torch.where(x.mask(), leaf.grad, 0))
    torch.testing.assert_close(*(torch.zeros_like(y) if g is None else g for g in (y.grad, other.grad)))


@formats
def test_a_copy_of_a_sparse_tensor_brings_its_pattern_along_without_autograd(format):
    x, y = pair(format, False)
    with torch.no_grad():
        x.copy_(y)
    assert x.structure.same(y.structure)
    assert torch.equal(x.to_dense(), y.to_dense())


@formats
def test_a_dense_target_takes_a_sparse_operand(format):
    x, y = torch.ones(5, 6, dtype=torch.float64), sample((5, 6), format)
    x.add_(y)
    torch.testing.assert_close(x, 1 + y.to_dense())


@formats
def test_a_leaf_that_wants_a_gradient_is_torchs_error(format):
    t = sample((3, 4), format).requires_grad_()
    for f in (lambda t: t.add_(1), lambda t: t.fill_(0), lambda t: t.t_()):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            f(t)
    with torch.no_grad():
        t.add_(1)


@formats
def test_a_result_that_does_not_fit_is_torchs_error(format):
    row = sample((1, 6), format)
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="shape"):
        row.requires_grad_().clone().add_(torch.ones(5, 6, dtype=torch.float64))
    with gs.fallback("silent"), pytest.raises(RuntimeError):
        row.detach().add_(torch.ones(5, 6, dtype=torch.float64))
    with gs.fallback("silent"), pytest.raises(RuntimeError, match="cast"):
        sample((1, 6), format).requires_grad_().clone().mul_(1j)


@formats
def test_random_fills_go_to_the_stored_positions(format):
    t = sample((30, 30), format)
    mask = t.mask()
    t.normal_(5, 0.1)
    assert torch.equal(t.to_dense() != 0, mask)
    assert (t.to_dense()[mask] - 5).abs().max() < 1


@formats
def test_the_fallback_brings_home_what_was_written(format):
    x, mean, var = torch.randn(4, 3, dtype=torch.float64), sample((3,), format, density=1), torch.ones(3).double()
    expected = mean.to_dense()
    with gs.fallback("silent"):
        F.batch_norm(x, mean, var, training=True)
    F.batch_norm(x, expected, torch.ones(3).double(), training=True)
    assert isinstance(mean, SparseTensor)
    torch.testing.assert_close(mean.to_dense(), expected)


INF, NAN = float("inf"), float("nan")
PADDING = {  # what may leave something where nothing is stored, and what may not
    "mul": lambda t, o: t.mul_(0.5),
    "mul by inf": lambda t, o: t.mul_(INF),
    "mul by a tensor": lambda t, o: t.mul_(o),
    "mul by a dense row": lambda t, o: t.mul_(torch.full((6,), INF, dtype=torch.float64)),
    "mul by a scalar tensor": lambda t, o: t.mul_(torch.tensor(NAN)),
    "add a number": lambda t, o: t.add_(1),
    "add": lambda t, o: t.add_(o, alpha=2),
    "add, alpha inf": lambda t, o: t.add_(o, alpha=INF),
    "sub a dense one": lambda t, o: t.sub_(torch.ones(5, 6, dtype=torch.float64)),
    "div by a number": lambda t, o: t.div_(3),
    "div by zero": lambda t, o: t.div_(0),
    "div": lambda t, o: t.div_(o),
    "addcdiv": lambda t, o: t.addcdiv_(o, o),
    "addcmul": lambda t, o: t.addcmul_(o, o, value=2),
    "lerp": lambda t, o: t.lerp_(o, 0.1),
    "sqrt": lambda t, o: t.abs_().sqrt_(),
    "cos": lambda t, o: t.cos_(),
    "foreach add": lambda t, o: torch._foreach_add_([t], 1),
    "foreach mul by inf": lambda t, o: torch._foreach_mul_([t], [INF]),
    "foreach add lists": lambda t, o: torch._foreach_add_([t], [o], alpha=2),
    "foreach div": lambda t, o: torch._foreach_div_([t], [o]),
    "foreach addcdiv": lambda t, o: torch._foreach_addcdiv_([t], [o], [o], [1.0]),
    "div, not in place": lambda t, o: t / 3,
    "mul, not in place": lambda t, o: t * INF,
}


@pytest.mark.parametrize("what", PADDING)
def test_padding_stays_zero(what):
    t, other = (gs.sparsify(torch.randn(5, 6, dtype=torch.float64), "70%", gs.Masked()) for _ in range(2))
    found = PADDING[what](t, other)
    found = found if isinstance(found, SparseTensor) else t
    assert not found.values()[~found.mask()].any()


def test_an_optimizer_step_clears_padding_only_where_it_must(monkeypatch):
    from gossamer.core import inplace
    from gossamer.ops import pointwise

    cleared = []
    for room in (inplace, pointwise):
        real = room.mask_padding
        monkeypatch.setattr(room, "mask_padding", lambda *a, real=real, **k: cleared.append(1) or real(*a, **k))
    weight = torch.nn.Parameter(gs.sparsify(torch.randn(8, 8), "50%", gs.Masked()))
    optimizer = torch.optim.AdamW([weight])
    torch.nn.functional.linear(torch.randn(2, 8), weight).sum().backward()
    optimizer.step()
    assert len(cleared) == 2  # sqrt(v) + eps, and the quotient by it


@pytest.mark.parametrize("format", [gs.CSR(), gs.formats.PackedCSR()], ids=repr)
def test_values_that_a_weight_of_a_module_drops_are_told(format):
    layer = gs.sparsify_(torch.nn.Linear(8, 8), "50%", format=format)
    before = layer.weight.detach().to_dense().clone()
    with pytest.warns(UserWarning, match="outside the pattern"):
        layer.weight.data += torch.ones(8, 8)
    torch.testing.assert_close(layer.weight.detach().to_dense(), (before + 1) * layer.weight.mask())
    layer.weight.data += layer.weight.mask().float()  # nothing is lost
    with pytest.warns(UserWarning, match="outside the pattern"):
        layer.weight.data = torch.ones(8, 8)
    with pytest.warns(UserWarning, match="outside the pattern"):
        layer.weight.data.clone().add_(torch.ones(8, 8))  # as a safe merge of PEFT does it
    gs.from_dense(layer.weight.detach().to_dense(), format).add_(torch.ones(8, 8))  # a tensor of the user's own
