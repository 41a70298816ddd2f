"""Any stack of levels, in any order, is right, or refused when it is made: nothing fails later, or inside of torch."""

import random

import pytest
import torch

import gossamer as gs
from gossamer.compiler.convert import restack
from gossamer.ops.plans_of import plan_of
from tests.formats._stacks import stored
from tests.ops.compiled_oracle import interpreted

SEEDS = range(320)


def test_every_stack_stores_or_refuses():
    kept = 0
    for seed in SEEDS:
        t, x = stored(seed)
        if t is None:
            continue
        kept += 1
        t.structure.check(t.values())
        assert torch.equal(t.to_dense(), x), (seed, t)
        assert t.nnz >= int((x != 0).sum()) and torch.equal(t.to_format(gs.COO()).to_dense(), x)
        assert torch.equal(gs.from_dense(x, gs.COO()).to_format(t.format).to_dense(), x)
        assert gs.formats.as_format(repr(t.format)) == t.format
    assert kept >= 120


def test_loops_over_every_stack():
    """By the interpreter, in which an index out of range is an error."""
    for seed in SEEDS:
        t, x = stored(seed)
        if t is None or x.numel() > 3000 or t.structure.plain:
            continue
        names = "abcd"[: x.dim()]
        for expression, others in (
            (f"{names}->{names[-1]}", ()),
            (f"{names},{names[0]}->{names[::-1]}", (x.new_ones(x.shape[0]),)),
        ):
            plan = plan_of(expression, [t, *others], gs.Dense())
            got = interpreted(plan, [t.values(), *others])
            torch.testing.assert_close(got, torch.einsum(expression, x, *others), msg=f"{seed} {t} {expression}")


@pytest.mark.parametrize("part", range(4))
def test_kernels_over_some_stacks(part, monkeypatch):
    monkeypatch.setattr(restack, "LEAST", 0)  # conversions by C too
    for seed in SEEDS[part::32]:
        t, x = stored(seed)
        if t is None:
            continue
        names = "abcd"[: x.dim()]
        other = gs.from_dense(x, gs.COO())
        assert torch.equal(t.to_format(gs.COO()).to_dense(), x) and torch.equal(other.to_format(t.format).to_dense(), x)
        for expression, tensors in ((f"{names}->{names[::-1]}", [t]), (f"{names},{names}->{names}", [t, other])):
            got = gs.einsum(expression, *tensors)
            got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
            torch.testing.assert_close(
                got, torch.einsum(expression, *[x] * len(tensors)), msg=f"{seed} {t} {expression}"
            )


def test_an_entry_is_not_stored_twice():
    with pytest.raises(ValueError, match=r"Slots\(\) would store entries more than once; use 'compressed' above it"):
        gs.Format("compressed-nonunique", gs.formats.levels.Slots())


def test_lanes_need_groups_of_sixteen():
    with pytest.raises(ValueError, match="parents in groups of 16, there are 31"):
        gs.from_dense(torch.eye(31), gs.Format("dense", gs.formats.levels.Lanes()))
    arrays = {"pos1": torch.tensor([0, 1], dtype=torch.int32), "crd1": torch.full((16,), 31, dtype=torch.uint8)}
    with pytest.raises(ValueError, match="level 1: Lanes takes parents in groups of 16, there are 31"):
        gs.SparseTensor.from_arrays(gs.Format("dense", gs.formats.levels.Lanes()), (31, 31), torch.zeros(16), arrays)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.float32])
def test_index_types_are_checked_by_us(dtype):
    """Of any format: torch has few operators for unsigned integers, and its errors said so."""
    x = torch.eye(20) * (torch.arange(20) % 4 < 2)
    packed = [
        gs.formats.PackedCSR(),
        gs.formats.PackedNM(2, 4),
        gs.formats.PackedNear(),
        gs.formats.PackedVNM(64, 2, 8),
    ]
    for format in (gs.CSR(), gs.COO(), gs.CSF(), gs.ELL(), gs.BSR((2, 2)), gs.Masked(), *packed):
        t = gs.from_dense(x, format)
        for name, array in t.structure.arrays.items():
            arrays = {**t.structure.arrays, name: array.to(dtype)}
            with pytest.raises(ValueError, match=f"{name[:-1]} is {dtype}, must be|index arrays must all be"):
                gs.SparseTensor.from_arrays(format, (20, 20), t.values(), arrays)


#: Operators whose result has another shape or another pattern than their argument, which its format may not allow.
OPERATORS = {
    "sum": lambda x: x.sum(0), "sum of rows": lambda x: x.sum(-1), "add": lambda x: x + x, "abs": lambda x: x.abs(),
    "permute": lambda x: x.permute(*range(x.dim())[::-1]), "transpose": lambda x: x.transpose(0, -1),
    "row": lambda x: x[0], "slice": lambda x: x[1:], "steps": lambda x: x[..., ::2], "flat": lambda x: x.reshape(-1),
    "cat": lambda x: torch.cat([x, x]), "stack": lambda x: torch.stack([x, x]), "new dimension": lambda x: x[None],
    "flipped": lambda x: x.index_select(-1, torch.arange(x.shape[-1]).flip(0)), "amax": lambda x: x.amax(-1),
    "scaled": lambda x: x * torch.arange(1.0, x.shape[-1] + 1, dtype=x.dtype),
    "repeat": lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
    "other pattern": lambda x: x + x.flip(0), "cumsum": lambda x: x.cumsum(-1), "float": lambda x: x.float(),
}  # fmt: skip


def test_operators_over_every_stack():
    """A format that can't hold a result must not make the operator fail."""
    for seed in SEEDS:
        t, x = stored(seed)
        if t is None:
            continue
        for name in random.Random(seed).sample(list(OPERATORS), 5):
            with gs.fallback("silent"):
                got = OPERATORS[name](t)
            got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
            torch.testing.assert_close(got, OPERATORS[name](x), msg=f"{seed} {t.format} {name}")


def test_results_keep_a_format_that_holds_anything():
    for format in (gs.CSR(), gs.COO(), gs.ELL(), gs.Format("compressed-nonunique", "singleton", "singleton"), gs.CSF()):
        assert format.general() == format
    for level in (gs.formats.levels.Fixed(3), gs.formats.levels.Lanes(), "singleton"):
        assert gs.Format("dense", level).general() == gs.CSR()
        assert gs.Format("compressed", "dense", level).general() == gs.COO()
