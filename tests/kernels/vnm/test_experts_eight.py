"""Experts in one launch with operands of 8 bits: the kernels in the emulator, and the operator on a CPU."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.vnm import experts_eight
from gossamer.kernels.vnm.eight import packed_values, quantize, round8
from gossamer.kernels.vnm.operators import vnm_of
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
E4M3 = torch.float8_e4m3fn


def operands(counts, rows, cols, element=torch.bfloat16, numbers=E4M3, biased=False, behind=0):
    """The decoded weights, and arguments, of as many experts as there are counts of tokens."""
    torch.manual_seed(len(counts) + rows + cols + sum(counts))
    dense = gs.sparsify(torch.randn(len(counts) * rows, cols), "2:4", format=gs.Dense())
    small, scale = round8(dense, numbers)
    values, structure = packed_values(small, PackedVNM("all", 2, 4, 8))
    bias = torch.randn(len(counts) * rows).to(element) if biased else None
    x = torch.randn(sum(counts) + behind, cols).to(element)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    given = values, vnm_of(structure).meta, scale, bias, x, ends, rows, cols
    return small.double() * scale.double()[:, None], given


def check(out, weight, given, lost=2.0**-24):
    """Compare with float64, over the rounded tokens; ``lost``: in sums, of the sum of magnitudes, for each term."""
    values, _, _, bias, x, ends, rows, cols = given
    small, scale = quantize(x, None, cols, 4, values.dtype)
    tokens, begin = small.double() * scale.double()[:, None], 0
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}[x.dtype]
    assert out.dtype is x.dtype and out.shape == (x.shape[0], rows)
    for expert, end in enumerate(ends.tolist()):
        own, shift = weight[expert * rows :][:rows], 0 if bias is None else bias.view(-1, rows)[expert].double()
        exact, size = tokens[begin:end] @ own.t() + shift, tokens[begin:end].abs() @ own.abs().t()
        bound = unit * exact.abs() + (cols + 4) * lost * (size + abs(shift)) + 1e-9
        assert (out[begin:end].double() - exact).abs().le(bound).all()
        begin = end


@needs_compiler
@pytest.mark.parametrize(
    ("counts", "rows", "cols", "processors"),
    [
        ((1, 1), 64, 128, 132),
        ((0, 2, 0, 0), 128, 384, 132),  # experts without tokens, at both ends
        ((3, 0, 20, 9, 1), 192, 137, 2),  # several parts of an expert; an odd number of columns
        ((40, 0, 1), 128, 3200, 132),  # a cluster; an expert with nearly all tokens
        ((0,) * 33 + (5,) + (0,) * 30 + (1, 2), 64, 256, 4),  # more experts than a warp has lanes
        ((130, 7), 256, 256, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("element", "numbers"), [(torch.float16, E4M3), (torch.bfloat16, E4M3), (torch.bfloat16, torch.int8)], ids=str
)
def test_one_launch(counts, rows, cols, processors, element, numbers, monkeypatch):
    emulate(monkeypatch, experts_eight, processors)
    weight, given = operands(counts, rows, cols, element, numbers, biased=rows in (128, 192))
    check(experts_eight.KINDS.run(*given), weight, given)
    assert len(experts_eight.KINDS._calls) == 1  # the kernels ran, not products expert by expert


@needs_compiler
def test_tokens_of_no_expert_and_wrong_ends(monkeypatch):
    emulate(monkeypatch, experts_eight, 132)
    weight, given = operands((2, 3), 64, 64, behind=4)
    check(experts_eight.KINDS.run(*given), weight, given)
    for wrong in ((100, 200), (-5, 3), (5, 1), (2**31 - 1, -(2**31))):  # nothing outside of the operands is touched
        ends = torch.tensor(wrong, dtype=torch.int32)
        for run in (experts_eight.KINDS.run, torch.ops.gossamer.vnm_experts_8bit):
            assert run(*given[:5], ends, *given[6:]).shape == (9, 64)


@needs_compiler
def test_the_kind_knows_nothing_of_the_counts(monkeypatch):
    emulate(monkeypatch, experts_eight, 132)
    for counts in ((4, 0, 4), (0, 8, 0), (3, 3, 2)):
        weight, given = operands(counts, 64, 64)
        check(experts_eight.KINDS.run(*given), weight, given)
    assert len(experts_eight.KINDS._calls) == 1


@needs_compiler
def test_orders_of_x_zeros_and_what_is_not_finite(monkeypatch):
    emulate(monkeypatch, experts_eight, 132)
    weight, given = operands((3, 2), 64, 100)
    x, run = given[4], experts_eight.KINDS.run
    wide = torch.zeros(5, 200).bfloat16()
    wide[:, 1:101] = x
    for other in (x.t().contiguous().t(), wide[:, 1:101]):
        check(run(*given[:4], other, *given[5:]), weight, (*given[:4], other, *given[5:]))
    x = x.clone()
    x[1], x[2, 3], x[4, 0] = 0, torch.inf, torch.nan
    out = run(*given[:4], x, *given[5:])
    assert not out[1].any() and bool(out[[2, 4]].isnan().all()) and bool(out[[0, 3]].isfinite().all())


def test_what_it_takes(monkeypatch):
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    x, values = torch.zeros(8, 128).half(), torch.zeros(8).to(E4M3)
    assert experts_eight.takes(values, x, 128) is None
    assert "float16" in experts_eight.takes(values, x.float(), 128)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    assert "9.0" in experts_eight.takes(values, x, 128)


def test_wrong_operands_are_named(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    _, given = operands((1, 1), 64, 64)
    for decide in (experts_eight.decide, experts_eight.one_by_one):
        with pytest.raises(RuntimeError, match="3 experts of 64 x 64"):
            decide(*given[:5], torch.zeros(3, dtype=torch.int32), *given[6:])
        shorter = (0, given[0][:-2]), (1, given[1][:-2]), (2, given[2][:-1]), (3, torch.zeros(127).bfloat16())
        for number, short in shorter:  # a kernel would read beyond them
            with pytest.raises(RuntimeError, match="2 experts of 64 x 64"):
                decide(*given[:number], short, *given[number + 1 :])
        with pytest.raises(RuntimeError, match="tokens x 128"):
            decide(*given[:7], 128)
        with pytest.raises(RuntimeError, match="multiple of 64 rows"):
            decide(*given[:6], 32, 64)
        with pytest.raises(RuntimeError, match="float64"):
            decide(*given[:2], given[2].double(), *given[3:])


@pytest.mark.parametrize("numbers", [E4M3, torch.int8], ids=str)
@pytest.mark.parametrize("counts", [(3, 0, 4), (0, 0), (1,)])
def test_on_a_cpu(counts, numbers):
    weight, given = operands(counts, 128, 140, torch.float32, numbers, biased=True, behind=2)
    check(torch.ops.gossamer.vnm_experts_8bit(*given), weight, given)
    operator = torch.ops.gossamer.vnm_experts_8bit.default
    checks = ("test_schema", "test_faketensor") if numbers is torch.int8 else ("test_faketensor",)  # torch lacks e4m3
    torch.library.opcheck(operator, given, test_utils=checks)


def test_the_part_of_an_expert():
    weight, (values, meta, scale, _, _, _, rows, _) = operands((0, 0, 0), 128, 300)
    for expert in range(3):
        own = weight[expert * rows :][:rows]
        alone = packed_values((own / scale[expert * rows :][:rows, None]).to(E4M3), PackedVNM("all", 2, 4, 8))
        assert torch.equal(experts_eight.part_of(values, 3, rows, expert).float(), alone[0].float())
        assert torch.equal(experts_eight.part_of(meta, 3, rows, expert), vnm_of(alone[1]).meta)
