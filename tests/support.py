"""What tests of several rooms ask of models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import gossamer as gs


def is_sparse(weight: Any) -> bool:
    """Is a weight of a model masked, or stored in a sparse format?"""
    return isinstance(weight, gs.SparseTensor | gs.nn.MaskedParameter)


def dense_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model by name, as copies in dense tensors."""
    return {name: weight.dense().clone() for name, weight in gs.nn.all_weights(model).items()}


def masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of all sparse weights of a model."""
    return {name: weight.mask().clone() for name, weight in gs.nn.sparse_weights(model).items()}


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    """Two models hold the same values at the same positions in the same formats, bit by bit."""
    mine, theirs = gs.nn.all_weights(one), gs.nn.all_weights(other)
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        assert weight.format == theirs[name].format, name
        assert torch.equal(weight.dense(), theirs[name].dense()), name
        assert torch.equal(weight.mask(), theirs[name].mask()), name
