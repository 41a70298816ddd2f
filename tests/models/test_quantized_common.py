"""What quantized layers share: inputs that are refused, types, and dense layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gossamer.models.quantized_common import check_tokens, dense_layer, dtype_after, is_transformed, linear_like


def test_inputs_are_refused_in_words() -> None:
    check_tokens(torch.ones(0, 4), 4)
    with pytest.raises(ValueError, match="its last dimension must be 4"):
        check_tokens(torch.tensor(1.0), 4)
    with pytest.raises(TypeError, match=r"x\.float"):
        check_tokens(torch.ones(2, 4, dtype=torch.int64), 4)


def test_only_inputs_of_a_transform_are_transformed() -> None:
    seen: list[bool] = []
    x = torch.ones(3)
    torch.func.vmap(lambda row: (seen.append(is_transformed(row)), row)[1])(x)
    assert seen == [True] and not is_transformed(x)


def test_types_follow_the_input_and_the_module() -> None:
    out = linear_like(torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(4, 3), torch.ones(4))
    assert out.dtype is torch.bfloat16 and out.tolist() == [[4.0] * 4] * 2
    assert dtype_after(lambda t: t.double(), torch.float16, torch.device("cpu")) is torch.float64


def test_dense_layers() -> None:
    weight, bias = torch.randn(2, 3), nn.Parameter(torch.ones(2))
    layer = dense_layer(weight, bias, inputs_first=False)
    assert type(layer) is nn.Linear and torch.equal(layer.weight, weight) and layer.bias is bias
    turned = dense_layer(weight, bias, inputs_first=True)
    assert type(turned).__name__ == "Conv1D" and torch.equal(turned.weight, weight.t())
