"""Which activations work element by element, and which kernels have them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from gossamer.kernels.product import ACTIVATIONS
from gossamer.models.activations import code_of, is_elementwise


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.GELU(), nn.SiLU(), F.relu, F.gelu, F.silu, torch.relu, ACT2FN["silu"], ACT2FN["gelu"]],
    ids=map(str, range(9)),
)  # fmt: skip
def test_kernels_compute_the_same(activation):
    x = torch.randn(100)
    known = ACTIVATIONS[code_of(activation)]
    torch.testing.assert_close(known(x), activation(x))
    assert is_elementwise(activation)


@pytest.mark.parametrize(
    "activation", [nn.GELU("tanh"), nn.Tanh(), ACT2FN["gelu_new"], F.softmax, None], ids=map(str, range(5))
)
def test_others(activation):
    assert code_of(activation) is None


def test_not_element_by_element():
    assert is_elementwise(nn.Tanh()) and not is_elementwise(nn.Softmax()) and not is_elementwise(nn.LayerNorm(3))
