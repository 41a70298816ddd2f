"""SDDMM with its loops cut: held rows, parts of the sum, tiles of columns. Always what the plain loops give."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.loops.machine import Machine
from gossamer.compiler.run import tiling
from gossamer.ops.plans_of import plan_of

SDDMM = "ij,ik,jk->ij"


def _operands(rows, columns, width, density, dtype=torch.float32, format=None):
    generator = torch.Generator().manual_seed(rows + width)
    a = torch.randn(rows, columns, generator=generator, dtype=dtype)
    a = a * (torch.rand(rows, columns, generator=generator) < density)
    q, k = (torch.randn(n, width, generator=generator, dtype=dtype) for n in (rows, columns))
    return gs.from_dense(a, format or gs.CSR()), q, k


def _right(a, q, k):
    got = gs.einsum(SDDMM, a, q, k)
    assert got.structure is a.structure
    pattern = a.to_dense() != 0
    want = a.to_dense().double() * (q.double() @ k.double().T)
    most = a.to_dense().double().abs() * (q.double().abs() @ k.double().abs().T)
    bound = 2 * (q.shape[1] + 2) * torch.finfo(q.dtype).eps * most
    assert bool(((got.to_dense().double() - want).abs() <= bound)[pattern].all())
    return plan_of(SDDMM, [a, q, k])


@pytest.fixture
def small(monkeypatch):
    """Caches so small that everything is cut."""
    monkeypatch.setattr(tiling, "_SECOND", 4096)
    monkeypatch.setattr(tiling, "_AGAIN", 1)
    monkeypatch.setattr(tiling, "_FULL", 0)
    monkeypatch.setattr(tiling, "_CHUNK", 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [16, 32, 96, 112, 128])
def test_held(width, dtype):
    plan = _right(*_operands(23, 31, width, 0.3, dtype))
    assert plan.tiling is None or plan.tiling.parts == 1
    assert plan.tiling is not None or dtype == torch.float64


@pytest.mark.parametrize("width", [1, 15, 17, 100, 130])
def test_other_widths_are_left_as_they_are(width):
    assert _right(*_operands(23, 31, width, 0.3)).tiling is None


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [128, 256, 640])
def test_parts_and_tiles(small, width, dtype, format):
    plan = _right(*_operands(37, 90, width, 0.2, dtype, format))
    found = plan.tiling
    assert found is not None and found.view is not None
    assert found.parts * found.turns == width
    assert f"for {found.tile} in" in plan.kernel.loops
    assert ("for k.part in" in plan.kernel.loops) == (found.parts > 1)


def test_empty_rows_tiles_and_operands(small):
    a, q, k = _operands(37, 90, 256, 0.2)
    dense = a.to_dense()
    dense[5:20] = 0
    dense[:, 30:60] = 0
    _right(gs.from_dense(dense, gs.CSR()), q, k)
    _right(gs.from_dense(torch.zeros_like(dense), gs.CSR()), q, k)


def test_operands_that_do_not_lie_whole(small):
    a, q, k = _operands(37, 90, 512, 0.2)
    _right(a, q[:, 128:384], k[:, :256])  # rows further apart than they are long
    got = gs.einsum("ij,ik,kj->ij", a, q, k.T.contiguous())  # k does not lie side by side
    assert torch.allclose(got.to_dense(), gs.einsum(SDDMM, a, q, k).to_dense(), atol=1e-3)


def test_the_interpreter_agrees(small):
    a, q, k = _operands(7, 20, 256, 0.4, torch.float64)
    plan = plan_of(SDDMM, [a, q, k])
    assert plan.tiling.parts == 4 and plan.tiling.view is not None
    values = dict(zip(("A.val", "B.val", "C.val"), plan.ready([a.values(), q, k]), strict=True))
    arrays = {n: x.reshape(-1).tolist() for n, x in {**plan.arrays, **values}.items()}
    arrays["out"] = [0.0] * a.nnz
    out = Machine(arrays, plan.numbers).run(plan.kernel.nest)["out"]
    assert torch.allclose(torch.tensor(out, dtype=torch.float64), gs.einsum(SDDMM, a, q, k).values())


def test_gradients_through_tiles(small):
    a, q, k = _operands(9, 33, 128, 0.3, torch.float64)
    values = a.values().clone().requires_grad_()
    q, k = q.requires_grad_(), k.requires_grad_()

    def f(values, q, k):
        return gs.einsum(SDDMM, gs.core.join.build(values, a.structure), q, k).values()

    assert torch.autograd.gradcheck(f, (values, q, k), fast_mode=True)


def test_explained(small):
    a, q, k = _operands(37, 90, 256, 0.2)
    text = plan_of(SDDMM, [a, q, k]).explain()
    assert "in 2 parts of 128" in text and "tiles of" in text
