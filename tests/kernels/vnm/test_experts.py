"""Experts in one launch: the kernel in the emulator, and the operator against products expert by expert."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.vnm import experts
from gossamer.kernels.vnm.operators import vnm_of
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def operands(counts, rows, cols, dtype=torch.bfloat16, biased=False, behind=0):
    """Weights of as many experts as there are counts of tokens; ``behind``: tokens that are for none."""
    torch.manual_seed(len(counts) + rows + cols + sum(counts))
    dense = gs.sparsify(torch.randn(len(counts) * rows, cols).to(dtype), "2:4", format=gs.Dense())
    packed = gs.from_dense(dense, PackedVNM("all", 2, 4))
    bias = torch.randn(len(counts) * rows).to(dtype) if biased else None
    x = torch.randn(sum(counts) + behind, cols).to(dtype)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    return dense, (packed.values(), vnm_of(packed.structure).meta, bias, x, ends, rows, cols)


def check(out, dense, given):
    _, _, bias, x, ends, rows, _ = given
    unit, begin = 2.0**-8 if x.dtype is torch.bfloat16 else 2.0**-11, 0
    assert out.dtype is x.dtype and out.shape == (x.shape[0], rows)
    for expert, end in enumerate(ends.tolist()):
        own, shift = dense[expert * rows :][:rows].double(), 0 if bias is None else bias.view(-1, rows)[expert].double()
        exact, size = x[begin:end].double() @ own.t() + shift, x[begin:end].double().abs() @ own.abs().t()
        bound = unit * exact.abs() + x.shape[1] * 2.0**-24 * (size + abs(shift)) + 1e-9
        assert (out[begin:end].double() - exact).abs().le(bound).all()
        begin = end


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("counts", "rows", "cols", "processors"),
    [
        ((1, 1), 64, 64, 132),  # a cluster of blocks for the columns is not worth it
        ((0, 2, 0, 0), 128, 192, 132),  # experts without tokens, at both ends
        ((3, 0, 20, 9, 1), 192, 72, 2),  # several parts of an expert; columns that are no multiple of 64
        ((40, 0, 1), 128, 2048, 132),  # a cluster; an expert with nearly all tokens
        ((0,) * 33 + (5,) + (0,) * 30 + (1, 2), 64, 128, 4),  # more experts than a warp has lanes
        ((130, 7), 256, 128, 1),
    ],
)  # fmt: skip
def test_one_launch(counts, rows, cols, processors, dtype, monkeypatch):
    emulate(monkeypatch, experts, processors)
    dense, given = operands(counts, rows, cols, dtype, biased=rows == 192)
    check(experts.KINDS.run(*given), dense, given)
    assert len(experts.KINDS._calls) == 1  # the kernel ran, not products expert by expert


@needs_compiler
def test_tokens_of_no_expert_and_wrong_ends(monkeypatch):
    emulate(monkeypatch, experts, 132)
    dense, given = operands((2, 3), 64, 64, behind=4)
    check(experts.KINDS.run(*given), dense, given)
    for wrong in ((100, 200), (-5, 3), (5, 1), (2**31 - 1, -(2**31))):  # nothing outside of the operands is touched
        ends = torch.tensor(wrong, dtype=torch.int32)
        assert experts.KINDS.run(*given[:4], ends, *given[5:]).shape == (9, 64)


@needs_compiler
def test_the_kind_knows_nothing_of_the_counts(monkeypatch):
    emulate(monkeypatch, experts, 132)
    for counts in ((4, 0, 4), (0, 8, 0), (3, 3, 2)):
        dense, given = operands(counts, 64, 64)
        check(experts.KINDS.run(*given), dense, given)
    assert len(experts.KINDS._calls) == 1


def test_what_it_takes(monkeypatch):
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    x = torch.zeros(8, 128).half()
    assert experts.takes(x, x, 128, 128) is None
    assert "multiple of 64 rows" in experts.takes(x, x, 100, 128)
    assert "float16" in experts.takes(x.float(), x, 128, 128)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    assert "9.0" in experts.takes(x, x, 128, 128)


def test_wrong_operands_are_named(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    _, given = operands((1, 1), 64, 64)
    with pytest.raises(RuntimeError, match="3 experts of 64 x 64"):
        experts.decide(*given[:4], torch.zeros(3, dtype=torch.int32), *given[5:])
    for number, short in ((1, given[1][:-2]), (2, torch.zeros(127).bfloat16())):  # a kernel would read beyond them
        with pytest.raises(RuntimeError, match="2 experts of 64 x 64"):
            experts.decide(*given[:number], short, *given[number + 1 :])
    with pytest.raises(RuntimeError, match="tokens x 128"):
        experts.decide(*given[:6], 128)


@pytest.mark.parametrize("counts", [(3, 0, 4), (0, 0), (1,)])
def test_on_a_cpu(counts):
    dense, given = operands(counts, 70, 72, torch.float32, biased=True, behind=2)
    out = torch.ops.gossamer.vnm_experts(*given)
    check(out, dense, given)
    torch.library.opcheck(torch.ops.gossamer.vnm_experts.default, given, test_utils=("test_schema", "test_faketensor"))
