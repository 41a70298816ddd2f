"""What a deployed model may be called with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gossamer.models.deploy.inputs import Call, Input, as_call, check_free, free, inputs_of


def test_an_example_as_a_call() -> None:
    x = torch.ones(2, 3)
    assert as_call(x).args[0].shape == as_call([x]).args[0].shape == (2, 3)
    call = as_call({"x": x.t(), "more": [x]})
    assert call.args == () and call.kwargs["x"].is_contiguous()
    assert [each.name for each in inputs_of(call, ())] == ["x", "more[0]"]


def test_written_and_read() -> None:
    for each in inputs_of(as_call((torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64))), dynamic=(1,)):
        assert Input.from_json(each.to_json()) == each


def test_checks() -> None:
    wanted = Input("x", torch.float32, (None, 3))
    assert wanted.check(torch.ones(3, 7).t()).is_contiguous()
    with pytest.raises(TypeError, match="x must be a tensor, not list"):
        wanted.check([1.0])
    with pytest.raises(TypeError, match=r"x must be torch.float32 on a CPU, not torch.float64"):
        wanted.check(torch.ones(2, 3, dtype=torch.float64))
    for shape in ((2, 4), (2,), (2, 3, 1)):
        with pytest.raises(ValueError, match=r"x must be \[any, 3\]"):
            wanted.check(torch.ones(shape))


class Named(nn.Module):
    def forward(self, ids: Tensor, bias: Tensor) -> Tensor:
        return ids


class Anything(nn.Module):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return args[0]


def test_free_dimensions() -> None:
    call = Call((torch.ones(2, 3),), {"bias": torch.ones(4)})
    check_free(call, (0, 1))
    named, anything = free(Named(), call, (0, 1)), free(Anything(), call, (0, 1))
    assert sorted(named["ids"]) == sorted(anything["args"][0]) == [0, 1]
    assert sorted(named["bias"]) == sorted(anything["kwargs"]["bias"]) == [0]
    assert free(Named(), call, ()) is None
    with pytest.raises(ValueError, match="dimension 0 of bias must be free: give an example with 2 or more"):
        check_free(Call((), {"bias": torch.ones(1)}), (0,))
