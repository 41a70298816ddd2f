"""Several weights in one launch: the kernel in the emulator, and the operator against products one by one."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.vnm import group
from gossamer.kernels.vnm.operators import vnm_of
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def operands(rows, cols, tokens, dtype=torch.bfloat16):
    torch.manual_seed(sum(rows) + cols + tokens)
    dense = [gs.sparsify(torch.randn(n, cols).to(dtype), "2:4", format=gs.Dense()) for n in rows]
    packed = [gs.from_dense(each, PackedVNM("all", 2, 4)) for each in dense]
    arrays = [part for each in packed for part in (each.values(), vnm_of(each.structure).meta)]
    arrays += [None] * (6 - len(arrays))
    numbers = (*rows, *[0] * (3 - len(rows)), cols)
    return torch.cat(dense), (*arrays, torch.randn(tokens, cols).to(dtype), *numbers)


def check(out, dense, x):
    exact, size = x.double() @ dense.double().t(), x.double().abs() @ dense.double().abs().t()
    unit = 2.0**-8 if x.dtype is torch.bfloat16 else 2.0**-11
    assert out.dtype is x.dtype and out.shape == exact.shape
    assert (out.double() - exact).abs().le(unit * exact.abs() + x.shape[1] * 2.0**-24 * size + 1e-9).all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "processors"),
    [
        ((128, 128), 64, 1, 132), ((256, 128, 128), 192, 5, 132), ((128, 384, 256), 1024, 33, 2),
        ((384, 128), 448, 64, 4), ((128, 128, 128), 2048, 9, 60),
    ],
)  # fmt: skip
def test_one_launch(rows, cols, tokens, processors, dtype, monkeypatch):
    emulate(monkeypatch, group, processors)
    dense, given = operands(rows, cols, tokens, dtype)
    check(group.KINDS.run(*given), dense, given[6])
    assert len(group.KINDS._calls) == 1  # the kernel ran, not products one by one


@needs_compiler
def test_every_weight_has_its_place(monkeypatch):
    emulate(monkeypatch, group, 132)
    rows = (128, 256, 128)
    for number in range(3):
        _, given = operands(rows, 128, 3)
        for other in {0, 1, 2} - {number}:
            given[2 * other].zero_()
        out = group.KINDS.run(*given).split(rows, 1)
        assert [bool(part.any()) for part in out] == [n == number for n in range(3)]


@needs_compiler
def test_lines_that_are_not_aligned_are_copied(monkeypatch):
    emulate(monkeypatch, group, 132)
    dense, given = operands((128, 128), 64, 4)
    wide = torch.zeros(4, 131).bfloat16()
    wide[:, 1:65] = given[6]
    check(group.KINDS.run(*given[:6], wide[:, 1:65], *given[7:]), dense, given[6])


def test_what_it_takes(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    x = torch.zeros(8, 128).half()
    assert group.takes((128, 256), 128, x) is None
    assert "64 columns" in group.takes((128, 256), 100, torch.zeros(8, 100).half())
    assert "multiples of 128 rows" in group.takes((128, 64), 128, x)
    assert "two or three" in group.takes((128,) * 4, 128, x)
    assert "tokens, not 0" in group.takes((128, 128), 128, x[:0])
    assert "tokens, not 2048" in group.takes((128, 128), 128, torch.zeros(2048, 128).half())
    assert "float32" in group.takes((128, 128), 128, x.float())
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    assert "9.0" in group.takes((128, 256), 128, x)


def test_wrong_operands_are_named(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    _, given = operands((128, 128), 64, 2)
    with pytest.raises(RuntimeError, match="tokens x 64"):
        group.decide(*given[:6], given[6].half(), *given[7:])


@pytest.mark.parametrize("rows", [(128, 128), (70, 30, 5)])
def test_on_a_cpu(rows):
    dense, given = operands(rows, 72, 5, torch.float32)
    out = torch.ops.gossamer.vnm_group(*given)
    torch.testing.assert_close(out, given[6] @ dense.t(), rtol=1e-4, atol=1e-4)
    torch.library.opcheck(torch.ops.gossamer.vnm_group.default, given, test_utils=("test_schema", "test_faketensor"))
