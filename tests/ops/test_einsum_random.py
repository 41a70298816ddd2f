"""Random expressions over random formats, against dense tensors, in the interpreter of loops and as C."""

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gossamer as gs
from benchmarks.compiler_grid import Case, draw, scorch_grid
from gossamer.compiler import parse
from gossamer.compiler.language.steps import steps
from gossamer.compiler.run.calls import plan_for
from gossamer.ops.operands import prepare, sizes_of
from gossamer.ops.plans_of import plan_of
from tests.ops.compiled_oracle import interpreted

COMPILED = 75  # cases that are built as C here; benchmarks/compiler_grid.py runs thousands


@given(st.integers(0, 2**31))
@example(4416)  # PackedCSR + dense: rows in slots, the fullest first, met every coordinate in order
@example(144172)  # a diagonal over an empty dimension: a strip that other loops depend on
@settings(max_examples=250)
def test_loops_mean_what_the_expression_means(seed):
    """No compiler here: the nest is interpreted, and an index out of range is an error."""
    case = draw(random.Random(seed))
    case.out = gs.Dense()
    if torch.Size([*case.sizes.values()]).numel() > 4000:
        case.sizes = {v: min(n, 5) for v, n in case.sizes.items()}
    sparse, dense = case.tensors()
    if not any(isinstance(t, gs.SparseTensor) for t in sparse):
        return
    statement = parse(case.expression, [t.dim() for t in sparse])
    if len(steps(statement, [isinstance(t, gs.SparseTensor) for t in sparse])) > 1:
        return
    sizes = sizes_of(case.expression, statement, sparse)
    statement, prepared = prepare(statement, sparse, sizes, torch.float64)
    args = [p.arg() for p in prepared]
    plan = plan_for(statement, args, sizes, torch.float64, "dense", torch.device("cpu"))
    got = interpreted(plan, [p.values for p in prepared])
    assert torch.allclose(got, case.wanted(dense), atol=1e-10), f"{case}\n{plan.kernel.loops}"


@pytest.mark.parametrize("part", range(5))
def test_kernels_compute_what_the_expression_means(part):
    rng = random.Random(1000 + part)
    for _ in range(COMPILED // 5):
        case = draw(rng)
        assert case.wrong() is None, case


def test_cases_that_others_fail():
    """A sample of the grid on which Scorch has 374 of 654 cases right; all of it is in benchmarks/results."""
    for case in list(scorch_grid())[::12]:
        assert case.wrong() is None, case


@pytest.mark.parametrize("expression", ["ik,kj->ij", "ij,ij->ij", "ij + ij -> ij", "ij->ji", "ijk,jl->ilk"])
def test_sparse_results_in_the_interpreter(expression):
    groups = expression.split("->")[0].replace(" + ", ",").split(",")
    sizes = {"i": 4, "j": 5, "k": 3, "l": 6}
    formats = [gs.CSF() if len(g) > 2 else gs.CSR() for g in groups]
    case = Case(expression, formats, sizes, [0.5] * len(groups), gs.COO())
    sparse, _ = case.tensors()
    plan = plan_of(expression, sparse, gs.COO())
    entries, _ = interpreted(plan, [t.values() for t in sparse])
    result = gs.einsum(expression, *sparse, out=gs.COO())
    if plan.choice.method != "sort":
        assert [v for _, v in entries] == pytest.approx(result.values().tolist())
        assert [k for k, _ in entries] == sorted(k for k, _ in entries)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 10), (3, 5), (1, 20)])
@pytest.mark.parametrize("expression", ["ik,kj->ij", "ik->i", "ik,ik->ik"])
def test_n_of_m_is_walked_as_it_lies(expression, n, m):
    """Two columns in a byte, or one: no copy is made, and loops and C mean the same."""
    dense = gs.sparsify(torch.randn(18, 35, dtype=torch.float64), gs.NM(n, m), format=gs.Dense())
    weight, x = gs.from_dense(dense, gs.formats.PackedNM(n, m)), torch.randn(35, 6, dtype=torch.float64)
    others = {"ik,kj->ij": (x,), "ik->i": (), "ik,ik->ik": (torch.randn(18, 35, dtype=torch.float64),)}[expression]
    plan = plan_of(expression, [weight, *others], gs.Dense())
    assert (
        plan.views[0] is not None and plan.views[0].index is None and plan.views[0].arrays["crd3"].dtype is torch.uint8
    )
    wanted = torch.einsum(expression, dense, *others)
    torch.testing.assert_close(interpreted(plan, [weight.values(), *others]), wanted)
    torch.testing.assert_close(gs.einsum(expression, weight, *others, out=gs.Dense()), wanted)
