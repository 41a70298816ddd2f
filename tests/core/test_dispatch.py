"""From a call to what runs: forms of a call, autocast, and the short path of F.linear."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.dispatch import choose
from gossamer.core.fallback import watch


def weight(*shape, format=None):
    return gs.sparsify(torch.randn(shape), "70%", format=format or gs.formats.PackedCSR())


def test_autocast_is_part_of_the_decision():
    x, w = torch.randn(2, 6), weight(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decision = choose(F.linear, (x, w))
        assert [a.dtype for a in decision.args] == [torch.bfloat16, torch.bfloat16]
        assert F.linear(x, w).dtype is torch.bfloat16
        assert choose(torch.add, (w, w)).args[0] is w
    assert F.linear(x, w).dtype is torch.float32


def test_under_autocast_a_weight_that_wants_a_dense_gradient_is_torchs():
    p = torch.nn.Parameter(weight(4, 6))
    p.grad_format = gs.Dense()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose(F.linear, (torch.randn(2, 6), p)).how == "torch"
        F.linear(torch.randn(2, 6), p).float().sum().backward()
    assert type(p.grad) is torch.Tensor


def test_out_is_written_at_the_stored_positions():
    w = weight(4, 6)
    out = torch.zeros_like(w)
    assert torch.add(w, w, out=out) is out
    assert torch.equal(out.to_dense(), 2 * w.to_dense())


def test_a_dense_out_is_a_fallback_and_right():
    w, out = weight(4, 6), torch.empty(0)
    with pytest.warns(gs.FallbackWarning, match="out= is dense"):
        torch.mul(w, 3, out=out)
    assert torch.equal(out, 3 * w.to_dense())


# -- the short path


def linear(*args):
    with watch() as seen:  # goes the long way
        out = F.linear(*args)
    assert seen
    return out


@pytest.mark.parametrize("format", [gs.formats.PackedCSR(), gs.CSR(), gs.BSR((2, 2)), gs.Masked()], ids=repr)
def test_the_short_path_gives_what_the_long_one_gives(format):
    w, bias = weight(8, 6, format=format), torch.randn(8)
    for x in (torch.randn(3, 6), torch.randn(2, 3, 6), torch.randn(6), torch.randn(6, 3).t(), torch.randn(0, 6)):
        for b in (None, bias, torch.nn.Parameter(bias)):
            want = linear(x, w, b)
            for _ in range(3):
                assert torch.equal(F.linear(x, w, b), want)
                with torch.no_grad():
                    assert torch.equal(F.linear(x, w, b), want)


@pytest.mark.parametrize("format", [gs.formats.PackedCSR(), gs.CSR()], ids=repr)
def test_gradients_by_the_short_path(format):
    w, x = weight(8, 6, format=format).requires_grad_(), torch.randn(2, 3, 6, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    grad = torch.randn(2, 3, 8)
    want = torch.autograd.grad(linear(x, w, bias), (x, w, bias), grad)
    for _ in range(2):
        got = torch.autograd.grad(F.linear(x, w, bias), (x, w, bias), grad)
        assert torch.equal(got[0], want[0]) and torch.equal(got[2], want[2])
        assert torch.equal(got[1].to_dense(), want[1].to_dense())


def test_what_is_another_case_goes_the_long_way():
    w, x = weight(8, 6), torch.randn(3, 6)
    F.linear(x, w)  # decided, and kept
    double = gs.SparseTensor(w._values.double(), w.structure)
    assert F.linear(x.double(), double).dtype is torch.float64
    with gs.fallback("silent"):
        for bad in (torch.randn(3, 5), torch.tensor(1.0), x.double()):
            with pytest.raises(RuntimeError):
                F.linear(bad, w)
        with pytest.raises(RuntimeError):
            F.linear(x, w, torch.randn(8).double())
    sparse = gs.from_dense(x, gs.CSR())
    torch.testing.assert_close(F.linear(sparse, w), x @ w.to_dense().t())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(x, w).dtype is torch.bfloat16


def test_a_weight_of_the_same_structure_has_its_own_values():
    w, x = weight(8, 6), torch.randn(3, 6)
    F.linear(x, w)
    twice = w * 2
    assert twice.structure is w.structure
    torch.testing.assert_close(F.linear(x, twice), 2 * F.linear(x, w))


def test_functorch_sees_the_call():
    w, x = weight(8, 6), torch.randn(3, 6)
    F.linear(x, w)
    with torch.no_grad():
        torch.testing.assert_close(torch.func.functional_call(_Layer(w), {}, (x,)), F.linear(x, w))


class _Layer(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.weight = torch.nn.Parameter(w, requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight)
