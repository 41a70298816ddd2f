"""Writes to masked weights by anybody: what is outside the mask is zero when the weight is next used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs

WRITES: dict[str, Callable[[Any], Any]] = {
    "nn.init": lambda w: nn.init.kaiming_uniform_(w),
    "add_": lambda w: w.add_(1),
    "copy_": lambda w: w.copy_(torch.ones_like(w)),
    "data": lambda w: w.data.normal_(),
    "data of a view": lambda w: w.data[0].fill_(3),
    "item": lambda w: w.__setitem__((slice(None), 0), 2.0),
    "foreach": lambda w: torch._foreach_add_([w], 1.0),
    "detached": lambda w: w.detach().sub_(1),
    "lerp": lambda w: w.lerp_(torch.ones_like(w), 0.5),
    "out": lambda w: torch.add(w.detach(), 1, out=w.detach()),
    "vector": lambda w: torch.nn.utils.vector_to_parameters(torch.ones(w.numel()), [w]),
}


def used(how: str, layer: nn.Module, folder: Path) -> Tensor:
    """The dense weight that a use of the layer works with."""
    if how == "forward":
        return (layer(torch.eye(16)) - layer.bias).t().detach()
    if how == "state_dict":
        return layer.state_dict()["weight"]
    if how == "save":
        gs.save(layer, folder / "layer.safetensors")
        return gs.load(nn.Linear(16, 8), folder / "layer.safetensors").weight.to_dense()
    if how == "copy":
        return copy.deepcopy(layer).weight.detach()
    if how == "weight":
        return gs.nn.all_weights(layer)["weight"].dense()
    if how == "pack_":
        gs.nn.all_weights(layer)["weight"].become(gs.nn.all_weights(layer)["weight"].sparse().to_format(gs.CSR()))
        return layer.weight.to_dense()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    return layer.weight.detach()


@pytest.mark.filterwarnings("ignore:values outside the mask")  # of vector_to_parameters, which sets .data
@pytest.mark.parametrize("how", ["forward", "state_dict", "save", "copy", "weight", "pack_", "optimizer"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_outside_the_mask_is_cleared(write: str, how: str, tmp_path: Path) -> None:
    layer: Any = gs.sparsify_(nn.Linear(16, 8), "75%")
    mask, before = layer.weight.mask(), layer.weight.detach().clone()
    with torch.no_grad():
        WRITES[write](layer.weight)
    values = used(how, layer, tmp_path)
    assert not values[~mask].any() and not torch.equal(values, before)
    assert int((layer.weight.to_dense() != 0).sum()) <= int(mask.sum()) == layer.weight.nnz


def test_a_write_just_before_a_step() -> None:
    layer: Any = gs.sparsify_(nn.Linear(16, 8), "75%")
    mask = layer.weight.mask()
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2, 16)).sum().backward()
    with torch.no_grad():
        layer._parameters["weight"].add_(1.0)
    optimizer.step()
    assert not layer._parameters["weight"][~mask].any()


def test_all_values_of_a_straight_through_method_survive_an_error_in_a_step() -> None:
    """In the middle of a step the parameter has values at every position; they are not taken for a stray write."""
    layer: Any = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.STE(layer, optimizer, "2:4")
    dense = method.layers[0].extra["dense"].clone()
    assert (dense != 0).all()
    layer(torch.ones(2, 16)).sum().backward()
    failing = optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    failing.remove()
    layer(torch.ones(2, 16)).sum().backward()
    layer.zero_grad()
    layer(torch.zeros(2, 16)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(method.layers[0].extra["dense"], dense)
