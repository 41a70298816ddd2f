"""einsum with loops by hand: the same results in every order, and the reason where there are none."""

import itertools

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.run import runtime
from gossamer.compiler.run.explained import loops_of
from gossamer.ops.by_hand import plan_by_hand
from gossamer.ops.plans_of import plan_of
from tests.compiler.test_golden import FILES, split

SIZES = {"i": 9, "j": 7, "k": 11, "d": 16, "l": 3}


def tensor(names, format, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shape = [SIZES[v] for v in names]
    x = torch.randn(shape, generator=generator, dtype=dtype)
    x = x * (torch.rand(shape, generator=generator) < 0.3) if format else x
    return gs.from_dense(x, format) if format else x


CASES = [
    ("ij,j->i", [gs.CSR(), None]),
    ("ij,j->i", [gs.CSC(), None]),
    ("ij,j->i", [gs.BSR((2, 2)), None]),
    ("ik,kj->ij", [gs.CSR(), None]),
    ("ik,kj->ij", [gs.ELL(), None]),
    ("ik,kj->ij", [gs.CSR(), gs.CSR()]),
    ("ik,kj->ij", [gs.CSR(), gs.CSC()]),
    ("ij + ij -> ij", [gs.CSR(), gs.CSC()]),
    ("ij,id,jd->ij", [gs.CSR(), None, None]),
    ("ikl,kj,lj->ij", [gs.CSF(), None, None]),
    ("max: ij->i", [gs.CSR()]),
    ("ij->", [gs.COO()]),
    ("ik,kj,jl->il", [gs.CSR(), gs.CSR(), None]),
]


@pytest.mark.parametrize(("expression", "formats"), CASES, ids=str)
def test_every_order_computes_the_same_or_says_why_not(expression, formats):
    groups = expression.split(": ")[-1].split("->")[0].replace("+", ",").split(",")
    tensors = [tensor(g.strip(), f, n) for n, (g, f) in enumerate(zip(groups, formats, strict=True))]
    want = interpret(parse(expression, [t.dim() for t in tensors]), [t.to_dense() for t in tensors])
    indices, done = sorted({v for g in groups for v in g.strip()}), 0
    for order in itertools.permutations(indices):
        loops = gs.Loops("".join(order))
        try:
            got = gs.einsum(expression, *tensors, loops=loops)
        except NotImplementedError as error:
            assert str(loops) in str(error) and "these orders can: " in str(error)
            continue
        torch.testing.assert_close(got.to_dense(), want)
        plan = plan_by_hand(expression, tensors, None, loops)
        assert plan.choice.order == order and plan.kernel.program.statement == plan.statement
        assert f"by hand: loops=gs.Loops(order={''.join(order)!r}" in plan.explain()
        done += 1
    assert done


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
@pytest.mark.parametrize("file", [f for f in FILES if f.stem not in ("one-pattern", "words")], ids=lambda f: f.stem)
def test_what_is_printed_can_be_given(file):
    """The loops that explain prints make the same program."""
    head, _ = split(file)
    compiled = gs.compile(head["expression"], *map(gs.formats.as_format, head["formats"].split("; ")),
                          out=gs.formats.as_format(head["out"]) if "out" in head else None)  # fmt: skip
    plans = compiled._any_plans()
    if len(plans[0].statement.inputs) < len(compiled.formats) or plans[0].flat is not None:
        pytest.skip("several kernels, or one without loops over indices")
    again = plan_by_hand(head["expression"], compiled._example(), compiled.out, loops_of(plans[0]))
    assert again.kernel.program == plans[0].kernel.program


def test_workspaces_strips_tiles_and_threads():
    a, b = tensor("ik", gs.CSR(), 0), tensor("kj", gs.CSR(), 1)
    want = a.to_dense() @ b.to_dense()
    for workspace in ("dense", "wide", "hash"):
        plan = plan_by_hand("ik,kj->ij", [a, b], None, gs.Loops(workspace=workspace))
        assert plan.kernel.program.workspace == workspace
        for _ in range(3):
            got = gs.einsum("ik,kj->ij", a, b, loops=gs.Loops(workspace=workspace))
            torch.testing.assert_close(got.to_dense(), want)
    x = b.to_dense()
    assert plan_by_hand("ik,kj->ij", [a, x], None, gs.Loops(strip="")).kernel.program.strip is None
    torch.testing.assert_close(gs.einsum("ik,kj->ij", a, x, loops=gs.Loops(strip="", threads=1)), want)
    s, q, k = tensor("ij", gs.CSR(), 2, torch.float32), tensor("id", None, 3), tensor("jd", None, 4)
    q, k = q.float(), k.float()
    plan = plan_by_hand("ij,id,jd->ij", [s, q, k], None, gs.Loops(tile=3))
    assert plan.tiling.view.sizes[0] == 3 and "tile=3" in plan.explain()
    got = gs.einsum("ij,id,jd->ij", s, q, k, loops=gs.Loops(tile=3))
    torch.testing.assert_close(got.to_dense(), s.to_dense() * (q @ k.t()))
    assert plan_by_hand("ij,id,jd->ij", [s, q, k], None, gs.Loops(tile=0)).tiling.view is None
    with pytest.raises(ValueError, match="there is nothing to tile"):
        gs.einsum("ik,kj->ij", a, x, loops=gs.Loops(tile=3))


def test_threads_are_at_most_so_many(monkeypatch):
    a, x = tensor("ij", gs.CSR(), 0), torch.ones(7, dtype=torch.float64)
    plan = plan_by_hand("ij,j->i", [a, x], None, gs.Loops(threads=1))
    assert plan.threads == 1 and plan_of("ij,j->i", [a, x]).threads > 1
    used = []
    plan.alone, plan.quick = False, False
    run = type(plan.kernel).run
    monkeypatch.setattr(type(plan.kernel), "run", lambda *args, **kw: used.append(kw["threads"]) or run(*args, **kw))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        plan([a.values(), x])
    finally:
        torch.set_num_threads(before)
    assert used == [1]


def test_gradients_out_half_precision_and_compile():
    a, x = tensor("ij", gs.CSR(), 0), tensor("jk", None, 1).requires_grad_()
    gs.einsum("ij,jk->ik", a, x, loops=gs.Loops("jik")).sum().backward()
    torch.testing.assert_close(x.grad, a.to_dense().sum(0)[:, None].expand(7, 11))
    total = torch.ones(9, 11, dtype=torch.float64)
    gs.einsum("ij,jk->ik", a, x.detach(), out=total, beta=1.0, loops=gs.Loops("kij"))
    torch.testing.assert_close(total, 1 + a.to_dense() @ x.detach())
    half = gs.einsum("ij,jk->ik", a.half(), x.detach().half(), loops=gs.Loops("ijk"))
    assert half.dtype == torch.float16
    k = gs.compile("ij,jk->ik", gs.CSR(), gs.Dense(), loops=gs.Loops("jik"))
    assert "loops=gs.Loops(order='jik')" in repr(k) and "in parts for j in 0" in k.loops.splitlines()[2]
    torch.testing.assert_close(k(a, x.detach()), a.to_dense() @ x.detach())


def test_what_can_not_be_done_is_refused():
    a, x = tensor("ij", gs.CSR(), 0), torch.ones(7, dtype=torch.float64)
    loops = gs.Loops("ij")
    with pytest.raises(ValueError, match="no operand of 'ij,j->i' is sparse"):
        gs.einsum("ij,j->i", a.to_dense(), x, loops=loops)
    with pytest.raises(ValueError, match="must name each loop once, in any order: 'ij'"):
        gs.einsum("ij,j->i", a, x, loops=gs.Loops("ijk"))
    with pytest.raises(NotImplementedError, match="is computed in 2 steps"):
        gs.einsum("exp(sum(ij)) -> i", a, loops=loops)
    with pytest.raises(NotImplementedError, match="fill=inf are always chosen"):
        gs.einsum("min: ij->i", a, fill=float("inf"), loops=loops)
    with pytest.raises(NotImplementedError, match="outside traces and transforms"):
        torch.func.vmap(lambda y: gs.einsum("ij,j->i", a, y, loops=loops))(torch.ones(2, 7, dtype=torch.float64))
    with pytest.raises(TypeError, match="no kernels for complex64"):
        gs.einsum("ij,j->i", a.to(torch.complex64), x.to(torch.complex64), loops=loops)
