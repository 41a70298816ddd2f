"""Designs: made once for operands that look alike, and made again where they must be."""

import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import DESIGNS
from gossamer.compiler.run.design import Design

PRODUCT = parse("ik,kj->ij", (2, 2))


def pattern(seed, rows=60, columns=50, entries=300, format=None):
    keys = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed))[:entries].sort().values
    return gs.formats.Structure.from_keys(format or gs.CSR(), keys, (rows, columns))[0]


def design(structure, width=8, out="dense", statement=PRODUCT):
    args = [Arg(("i", "k"), structure, tuple(structure.shape)), Arg(("k", "j"), None, (50, width), (width, 1))]
    return Design(statement, args, {"i": 60, "k": 50, "j": width}, torch.float32, out)


def test_patterns_that_look_alike_have_one_design():
    first = design(pattern(0))
    count = len(DESIGNS)
    second = design(pattern(1))
    assert second.program is first.program and second.choice is first.choice and len(DESIGNS) == count
    assert second.views[0].arrays["crd1"] is not first.views[0].arrays["crd1"]


def test_what_differs_has_a_design_of_its_own():
    base = design(pattern(0))
    for other in (design(pattern(0), width=16), design(pattern(0, format=gs.CSC())), design(pattern(0, entries=2900))):
        assert other.program is not base.program or other.choice is not base.choice


def test_operands_are_repacked_again():
    first, second = (design(pattern(seed, format=gs.COO())) for seed in (2, 3))
    assert second.program is first.program
    assert second.views[0].entries == 300 and second.views[0].arrays is not first.views[0].arrays


def test_a_long_sum_is_never_taken_for_a_short_one():
    sizes = {"i": 9000, "k": 9000}
    statement = parse("ik->i", (2,))

    def of(rows):
        keys = torch.cat([rows[0] * 9000 + torch.arange(rows[1]), (rows[0] + 1 + torch.arange(8000 - rows[1])) * 9000])
        structure = gs.formats.Structure.from_keys(gs.CSR(), keys.sort().values, (9000, 9000))[0]
        return Design(statement, [Arg(("i", "k"), structure, (9000, 9000))], sizes, torch.float32, "dense")

    assert not of((0, 1)).program.long and of((0, 8000)).program.long and not of((0, 2)).program.long
