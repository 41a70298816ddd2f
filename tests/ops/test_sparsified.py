"""sparsified_op: inline and external sparsifiers, temporary and output formats, for outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer as gs
from gossamer.ops import sparsified


def test_all_four_steps_by_hand():
    add = gs.sparsified_op(
        orig_op=torch.add,
        out_fmt=[(gs.sparsifiers.ScalarThreshold(1.0), gs.COO(), gs.sparsifiers.ScalarFraction(0.75), gs.CSR())],
    )
    out = add(torch.tensor([[0.5, 3.0], [2.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    assert out.format == gs.CSR()
    assert out.to_dense().tolist() == [[0.0, 4.0], [0.0, 0.0]]  # 0.5 falls to the threshold, 3 and 2 to the fraction


def test_gradient_of_the_output_in_its_format():
    seen = []
    add = gs.sparsified_op(
        torch.add, [(None, None, None, None)], [(None, None, gs.sparsifiers.ScalarFraction(0.75), gs.COO())]
    )
    a = torch.randn(2, 4, requires_grad=True)
    b = (a * 1).requires_grad_()
    b.register_hook(seen.append)
    (add(b, 0) * torch.arange(8.0).view(2, 4)).sum().backward()
    assert a.grad.to_dense().tolist() == [[0, 0, 0, 0], [0, 0, 6.0, 7.0]]


def test_sparse_inputs_and_outputs_keep_gradients():
    p = torch.nn.Parameter(gs.sparsify(torch.randn(8, 8), "50%"))
    scale = gs.sparsified_op(torch.mul, [(None, gs.CSR(), "75%", gs.COO())])
    out = scale(p, 2.0)
    out.sum().backward()
    assert out.nnz == 16
    torch.testing.assert_close(p.grad.to_dense(), 2.0 * out.mask())


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operator made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize("sparsifier", [gs.sparsifiers.ScalarThreshold(3.0), gs.sparsifiers.RandomFraction(0.99)])
def test_a_streaming_sparsifier_never_holds_the_whole_output(sparsifier, monkeypatch):
    monkeypatch.setattr(sparsified, "_CHUNK", 2**12)
    x, w = torch.randn(512, 4), torch.randn(256, 4)
    linear = gs.sparsified_op(F.linear, [(sparsifier, gs.COO(), None, gs.COO())])
    with Largest() as largest:
        out = linear(x, w)
    assert largest.numel <= max(2**12, x.numel(), 3 * out.nnz)
    expected = gs.sparsify(F.linear(x, w), sparsifier, gs.COO())
    torch.testing.assert_close(out.to_dense(), expected.to_dense())


def test_pieces_have_gradients(monkeypatch):
    monkeypatch.setattr(sparsified, "_CHUNK", 16)
    x, w = torch.randn(8, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    linear = gs.sparsified_op(F.linear, [(gs.sparsifiers.ScalarThreshold(1.0), gs.CSR(), None, gs.CSR())])
    linear(x, w).sum().backward()
    got = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    dense = F.linear(x, w)
    (dense * (dense.abs() > 1.0)).sum().backward()
    torch.testing.assert_close(got, (x.grad, w.grad))


def test_an_inline_function_of_one_s_own():
    @gs.implements(torch.outer, (gs.Dense, gs.Dense), inline=type(gs.sparsifiers.ScalarThreshold(1.0)))
    def outer_above(input, vec2, *, sparsifier):
        return gs.sparsify(torch.outer(input, vec2), sparsifier, gs.COO()) * 0 + 7

    outer = gs.sparsified_op(torch.outer, [(gs.sparsifiers.ScalarThreshold(1.0), gs.COO(), None, None)])
    assert float(outer(torch.ones(2), torch.ones(2)).max()) == 7.0


def test_several_outputs():
    chunk = gs.sparsified_op(torch.chunk, [(None, None, "50%", gs.CSR()), (None, None, "75%", gs.COO())])
    a, b = chunk(torch.randn(8, 4), 2)
    assert (a.format, a.nnz, b.format, b.nnz) == (gs.CSR(), 8, gs.COO(), 4)


def test_bad_specifications():
    with pytest.raises(ValueError, match="inline sparsifier, temporary format"):
        gs.sparsified_op(torch.add, [("90%", gs.CSR())])
    with pytest.raises(ValueError, match="grad_out_fmt has 2 entries"):
        gs.sparsified_op(torch.add, [(None,) * 4], [(None,) * 4] * 2)
    with pytest.raises(ValueError, match="does not give as many outputs"):
        gs.sparsified_op(torch.add, [(None,) * 4] * 2)(torch.ones(1), 1)
