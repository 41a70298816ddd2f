"""The largest n of every m in one launch; the kernel is run on a CPU by tests/native/emulator.py."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels import choosing
from gossamer.kernels.choosing import Chosen
from gossamer.native.build import compiler
from tests.native import emulator

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def matrices(dtype, m, shapes=((1, 1), (3, 5), (17, 9), (64, 20))):
    """Random matrices with many equal magnitudes, infinities and zeros of both signs."""
    out = []
    for rows, groups in shapes:
        dense = torch.randn(rows, groups * m).mul(2).round().div(2).to(dtype)
        dense[dense == 0] *= -1.0
        dense.view(-1)[5::37] = float("-inf")
        out.append(Chosen(dense, torch.full_like(dense, 7.0), torch.zeros(dense.shape, dtype=torch.bool)))
    return out


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setattr(choosing, "function", emulator.function)
    monkeypatch.setattr(choosing, "processors", lambda device: 2)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("dtype", "n", "m"),
    [*((dtype, 2, 4) for dtype in TYPES), (TYPES[0], 1, 4), (TYPES[0], 2, 8), (TYPES[1], 5, 16), (TYPES[0], 1, 32)],
)
def test_the_kernel_selects_as_the_pattern_does(emulated, dtype, n, m):
    given, wrong = matrices(dtype, m), torch.zeros(1, dtype=torch.int32)
    copies = [one.dense.clone() for one in given]
    choosing.launch(given, n, m, dtype, wrong)
    for one, dense in zip(given, copies, strict=True):
        mask = gs.NM(n, m).select(dense.abs().double())
        assert torch.equal(one.mask, mask) and torch.equal(one.sparse, torch.where(mask, dense, 0))
        assert torch.equal(one.dense, dense)
    assert not wrong


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_leaves_its_group_and_sets_the_flag(emulated, dtype):
    (one,), wrong = matrices(dtype, 4, [(2, 3)]), torch.zeros(1, dtype=torch.int32)
    one.dense[1, 5] = float("-nan") if dtype is torch.float32 else float("nan")
    choosing.launch([one], 2, 4, dtype, wrong)
    assert int(wrong) == 1 and (one.sparse[1, 4:8] == 7).all() and not one.mask[1, 4:8].any()
    assert (one.mask.sum(1) == torch.tensor([6, 4])).all()


def test_what_fits(monkeypatch):
    (one,) = matrices(torch.float32, 4, [(2, 6)])
    assert not one.fits(4)  # on a CPU
    monkeypatch.setattr(choosing, "on_gpu", lambda tensor: True)
    assert one.fits(4) and one.fits(8) and not one.fits(16) and not one.fits(3)
    assert not one._replace(dense=one.dense.double()).fits(4) and not one._replace(mask=one.mask.t()).fits(4)
    shifted = torch.empty(25)[1:].view(2, 12)
    assert not Chosen(shifted, shifted, one.mask[:, :12]).fits(4)
