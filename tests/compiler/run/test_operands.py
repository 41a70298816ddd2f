"""Operands as loops walk them."""

import torch

import gossamer as gs
from gossamer.compiler.language.notation import parse
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.operands import Operands


def operands(expression, *tensors, out="dense"):
    statement = parse(expression, [t.dim() for t in tensors])
    args = [
        Arg(names, t.structure, tuple(t.shape)) if isinstance(t, gs.SparseTensor)
        else Arg(names, None, tuple(t.shape), t.stride())
        for names, t in zip(statement.inputs, tensors, strict=True)
    ]  # fmt: skip
    sizes = {v: n for a in args for v, n in zip(a.vars, a.shape, strict=True)}
    return Operands(statement, args, sizes, out)


def test_as_stored_or_sorted():
    a = gs.from_dense(torch.eye(3, 5), gs.CSR())
    own = operands("ij,j->i", a, torch.ones(5))
    assert own.views[1] is None and own.orders == [None, None] and own.along(0, "j") and not own.along(0, "i")
    assert own.other_orders(0, own.views[0]) == [(1, 0)]
    guess = own.turned(0, (1, 0))
    own.repack(0, (1, 0))
    assert own.orders == [(1, 0), None] and own.loop_vars(0, own.views[0]) == ("j", "i") and not own.along(0, "i")
    assert guess.operand.vars == own.given(0, own.views[0]).operand.vars


def test_a_dimension_that_others_share_is_not_cut():
    a = gs.from_dense(torch.ones(4, 4), gs.BSR((2, 2)))
    alone, shared = operands("ij,j->i", a, torch.ones(4)), operands("ij,ij->i", a, a)
    alone.keep_whole()
    shared.keep_whole()
    assert [d.var for d in alone.derived()] == ["i", "j"] and alone.sizes["i.0"] == 2
    assert shared.derived() == () and None not in shared.orders


def test_empty_rows_are_left_out_only_where_there_are_many():
    a = gs.from_dense(torch.nn.functional.pad(torch.eye(3), (0, 0, 0, 5000)), gs.CSR())
    own = operands("ij,j->i", a, torch.ones(3))
    assert own.filled_view(0).arrays["crd0"].tolist() == [0, 1, 2] and own.filled_view(1) is None
    assert operands("ij,j->i", gs.from_dense(torch.eye(2000), gs.CSR()), torch.ones(2000)).filled_view(0) is None
    own.repack(0)
    assert own.filled_view(0) is None


def test_an_operand_without_dimensions():
    own = operands(",->", torch.tensor(2.0), torch.tensor(3.0))
    assert own.views == [None, None] and not own.along(0, "i")
