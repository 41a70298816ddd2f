"""Plans for new patterns that look like one before: the same kernel, other index arrays."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.templates import look, template
from gossamer.ops import ready
from gossamer.ops.plans_of import plan_of


def matrix(seed, rows=30, columns=40, entries=120, format=None):
    """A matrix with exactly so many entries, wherever they are."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randperm(rows * columns, generator=generator)[:entries].sort().values
    structure, place = gs.formats.Structure.from_keys(format or gs.CSR(), keys, (rows, columns))
    values = torch.zeros(structure.value_shape, dtype=torch.float64).reshape(-1)
    values[place] = torch.randn(entries, generator=generator, dtype=torch.float64)
    return gs.SparseTensor(values.view(structure.value_shape), structure)


def made(expression, tensors, names):
    plan = plan_of(expression, tensors)
    args = [
        Arg(own, t.structure if isinstance(t, gs.SparseTensor) else None, tuple(t.shape))
        for own, t in zip(names, tensors, strict=True)
    ]
    return plan, template(plan, args)


def test_the_lengths_of_arrays_to_two_digits():
    a, b, c = (matrix(n, entries=entries).structure for n, entries in enumerate((120, 121, 140)))
    assert look([a]) == look([b]) != look([c]) and look([a, None]) == look([a])


def test_a_template_keeps_no_array_and_binds_those_of_another_pattern():
    a, b, x = matrix(0), matrix(1), torch.randn(40, dtype=torch.float64)
    plan, kept = made("ij,j->i", [a, x], [("i", "j"), ("j",)])
    assert kept.nbytes() == 0 and kept.plan.keep == [] and all(v is None or not v.arrays for v in kept.plan.views)
    other = kept.plan_for([b.structure, None])
    assert other.kernel is plan.kernel and other.nbytes() == 0
    assert torch.allclose(other([b._values, x])[0], b.to_dense() @ x)
    assert torch.allclose(plan([a._values, x])[0], a.to_dense() @ x)  # the first plan is as it was
    assert "120 entries, walked as it is stored" in other.explain()


def test_what_depends_on_more_than_lengths_has_none():
    x = torch.randn(40, dtype=torch.float64)
    for format in (gs.ELL(), gs.COO(), gs.DCSR(), gs.Masked()):
        assert made("ij,j->i", [matrix(0, format=format), x], [("i", "j"), ("j",)])[1] is None, format
    a = matrix(0)
    assert made("ij,ij->", [a, a], [("i", "j")] * 2)[1] is None  # values alone


def test_one_pattern_is_left_to_another_kernel():
    a, b = matrix(0), matrix(1)
    _, kept = made("ij + ij -> ij", [a, b], [("i", "j")] * 2)
    copy = gs.formats.Structure(a.format, a.shape, {n: t.clone() for n, t in a.structure.arrays.items()}, a.device)
    assert kept.zips and kept.plan_for([a.structure, copy]) is None
    assert kept.plan_for([b.structure, a.structure]) is not None


def test_a_long_sum_is_left_to_another_kernel():
    short, x = matrix(0, 6000, 6000, 6000), torch.randn(6000, dtype=torch.float64)
    _, kept = made("ij,j->i", [short, x], [("i", "j"), ("j",)])
    pos = torch.full((6001,), 6000, dtype=torch.int32)
    pos[0] = 0  # all in the first row
    arrays = {"pos1": pos, "crd1": torch.arange(6000, dtype=torch.int32)}
    long = gs.formats.Structure(gs.CSR(), (6000, 6000), arrays, pos.device)
    assert look([long])[:-1] == look([short.structure])[:-1] and kept.plan_for([long, None]) is None


def test_empty_rows_are_left_out_of_new_patterns_too():
    x, sizes = torch.randn(40, dtype=torch.float64), []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        dense = torch.zeros(9000, 40, dtype=torch.float64)
        dense.view(-1)[torch.randint(360_000, (1000,), generator=generator)] = 1.5
        a = gs.from_dense(dense, gs.CSR())
        torch.testing.assert_close(gs.einsum("ij,j->i", a, x), dense @ x)
        plan, kept = made("ij,j->i", [a, x], [("i", "j"), ("j",)])
        other = kept.plan_for([a.structure, None])
        assert kept.filled == {0} and other.units == plan.units == int((dense != 0).any(1).sum())
        sizes.append(other.units)
        assert kept.plan_for([matrix(0).structure, None]) is None  # a pattern with few empty rows
    assert len(set(sizes)) > 1


def test_rows_that_differ_in_length_have_another_template():
    even = gs.from_dense(torch.eye(200), gs.CSR()).structure
    counts = torch.arange(201).remainder(5)
    counts[0] = 0
    pos = counts.cumsum(0).int()
    arrays = {"pos1": pos, "crd1": torch.cat([torch.arange(n) for n in counts.tolist()]).int()}
    uneven = gs.formats.Structure(gs.CSR(), (200, 200), arrays, pos.device)
    assert look([even])[-1] is False and look([uneven])[-1] is True
    assert look([uneven], sums=False) == look([uneven])[:-1]


@pytest.mark.parametrize("expression", ["ij,j->i", "ij,jk->ik", "ij,ij->ij", "ij + ij -> ij", "ij->j", "ij,id,jd->ij"])
def test_calls_on_new_patterns_are_right(expression, monkeypatch):
    used = []
    bind = ready.Template.plan_for
    monkeypatch.setattr(ready.Template, "plan_for", lambda *args: used.append(bind(*args)) or used[-1])
    shapes = {"j": (40,), "jk": (40, 3), "id": (30, 5), "jd": (40, 5)}
    groups = [g.strip() for g in expression.split("->")[0].replace("+", ",").split(",")]
    for seed in range(5):
        torch.manual_seed(seed)
        tensors = [
            matrix(10 * seed + n) if group == "ij" else torch.randn(shapes[group], dtype=torch.float64)
            for n, group in enumerate(groups)
        ]
        got = gs.einsum(expression, *tensors)
        want = gs.einsum(expression, *(t.to_dense() if isinstance(t, gs.SparseTensor) else t for t in tensors))
        assert torch.allclose(got.to_dense() if isinstance(got, gs.SparseTensor) else got, want)
    assert len([plan for plan in used if plan is not None]) >= 3 or expression == "ij,id,jd->ij"  # tiled
