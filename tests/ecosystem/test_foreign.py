"""Tensors of other libraries: left alone by pack_, and refused by sparsify_ with a reason."""

import pytest
import torch

import gossamer as gs


class Other(torch.Tensor):
    """As other libraries have them: a wrapper around tensors that knows few operators."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Other(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Other(args[0].inner)
        raise NotImplementedError(func)


def test_tensors_of_other_libraries_are_left_alone_or_refused():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = torch.nn.Parameter(Other(torch.randn(8, 8)), requires_grad=False)
    gs.sparsify_(model, {"0": "75%", "*": None})
    with pytest.raises(TypeError, match=r"1\.weight is a .*Other\. Make it sparse before"):
        gs.sparsify_(model, "75%")
    assert [layer.name for layer in gs.pack_(model, tune=False).layers] == ["0.weight"]
