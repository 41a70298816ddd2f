"""What is known of torch's operators: every name exists, and what is claimed of it holds."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.core import facts
from gossamer.core.table import operator_of


def torchs(name):
    special = name.removeprefix("special_")
    homes = ((F, name), (torch, name), (torch.special, special), (torch.Tensor, name), (torch.ops.aten, name))
    return next((getattr(home, n) for home, n in homes if hasattr(home, n)), None)


@pytest.mark.parametrize("name", sorted(facts.POINTWISE - {"polygamma", "mvlgamma"}))
def test_pointwise_operators_exist(name):
    assert torchs(name) is not None


@pytest.mark.parametrize("name", sorted(facts.ZERO_PRESERVING - {"softshrink", "hardshrink", "rrelu"}))
def test_zeros_are_preserved(name):
    out = torchs(name)(torch.zeros(2))
    assert not bool(out.any())


def test_no_operator_is_in_two_of_the_lists():
    assert not facts.ZERO_PRESERVING & facts.OTHER_UNARY
    assert not (facts.ZERO_PRESERVING | facts.OTHER_UNARY) & facts.BINARY
    assert facts.POINTWISE <= facts.INPLACE and facts.KEEPS_ZEROS <= facts.INPLACE


def test_aliases_lead_to_names_that_are_none():
    assert not set(facts.ALIASES.values()) & set(facts.ALIASES)
    assert operator_of(torch.Tensor.__invert__).name == "bitwise_not"
    assert operator_of(torch.Tensor.__rand__) == ("bitwise_and", False, True)
    assert operator_of(torch.Tensor.__ior__) == ("bitwise_or", True, False)


@pytest.mark.parametrize("name", sorted(facts.FILLS))
def test_fills_are_in_place(name):
    assert hasattr(torch.Tensor, f"{name}_")


@pytest.mark.parametrize("name", sorted(facts.PARAMETERS))
def test_parameters_are_torchs(name):
    given = {"cat": [torch.ones(2, 2)] * 2, "stack": [torch.ones(2, 2)] * 2}
    matrix, vector, batch = torch.ones(2, 2), torch.ones(2), torch.ones(1, 2, 2)
    special = {
        "conv2d": [torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1), None, 1, 0, 1, 1],
        "embedding": [torch.tensor([0]), matrix],
        "bmm": [batch, batch], "baddbmm": [batch, batch, batch], "mv": [matrix, vector],
        "addmv": [vector, matrix, vector], "linear": [matrix, matrix, None], "cat": [given["cat"], 0],
        "stack": [given["stack"], 0],
    }  # fmt: skip
    names = facts.PARAMETERS[name]
    arguments = special.get(name, [matrix] * len(names))
    out = torchs(name)(**dict(zip(names, arguments, strict=True)))
    assert torch.equal(out, torchs(name)(*arguments))
