"""Which experts quantize_ takes, and what it says of the others."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.models.quantize_experts import expect_experts, experts_weights, quantize_experts, width_of_groups
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.quantized_experts import QuantizedExperts
from tests.models.test_grouped import experts, packed
from tests.models.test_quantized_experts import close, pattern

t = pytest.importorskip("transformers")
NOT_TAKEN = "not quantized: model.layers.0.mlp.experts"


def module_of(model: Any) -> Any:
    return model.model.layers[0].mlp.experts


@pytest.mark.parametrize("m", [4, 8])
@torch.no_grad()
def test_masked_and_packed_ones(m: int) -> None:
    model, ids = pattern(experts(), m), torch.randint(32, (1, 5))
    stored = experts()
    dense = packed(stored, m)
    taken = [gs.quantize_(copy.deepcopy(each), "fp8") for each in (model, stored)]
    pack = gs.pack_(model, {"input_ids": ids}, quiet=True, tune=False)  # to what a CPU has for one expert
    assert pack.layers
    taken.append(gs.quantize_(model, "fp8"))
    for each in taken:
        assert isinstance(module_of(each), QuantizedExperts) and isinstance(each.lm_head, QuantizedLinear)
        assert torch.equal(module_of(each).down_proj_values.float(), module_of(taken[0]).down_proj_values.float())
    error = taken[1](ids).logits - dense(ids).logits
    assert 0 < float(error.abs().max())


@torch.no_grad()
def test_patterns_without_a_kernel_are_left_with_a_warning() -> None:
    for how in (None, "60%", "64:2:8"):
        model = experts()
        if how is not None:
            gs.sparsify_(model, {"*experts*": how, "*": None})
        before = module_of(model)
        with pytest.warns(UserWarning, match=f"{NOT_TAKEN}.*is not 2:4, or all:2:m"):
            gs.quantize_(model, "fp8")
        assert module_of(model) is before and isinstance(model.lm_head, QuantizedLinear)
        with pytest.raises(ValueError, match="is not 2:4"):
            gs.quantize_(model, "fp8", where="*experts*")


def test_one_weight_sparse_and_one_dense() -> None:
    model = gs.sparsify_(experts(layers=3), {"*gate_up_proj": "2:4", "*": None})
    with pytest.warns(UserWarning, match=f"{NOT_TAKEN} and 2 more: down_proj is not 2:4"):
        gs.quantize_(model, "fp8")
    assert module_of(model).gate_up_proj.format == gs.Masked()


def test_where() -> None:
    model = gs.sparsify_(experts(layers=2), "2:4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gs.quantize_(model, "fp8", where="*layers.1.mlp.experts*")
    assert not isinstance(module_of(model), QuantizedExperts)
    assert (
        isinstance(model.model.layers[1].mlp.experts, QuantizedExperts) and type(model.lm_head) is not QuantizedLinear
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gs.quantize_(model, "fp8", where="*self_attn*")
    assert not isinstance(module_of(model), QuantizedExperts)
    with pytest.raises(ValueError, match="are quantized together"):
        gs.quantize_(model, "fp8", where="*experts.down_proj")
    alone = gs.quantize_(module_of(model), "fp8")
    assert isinstance(alone, QuantizedExperts)
    with pytest.raises(ValueError, match="has no linear layer"):
        gs.quantize_(alone, "fp8")


def test_other_kinds() -> None:
    sizes = {
        "vocab_size": 8,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_local_experts": 4,
    }
    config = t.GptOssConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    model = gs.sparsify_(t.GptOssForCausalLM(config), {"*experts*": "2:4", "*": None})
    with pytest.warns(UserWarning, match="inputs x outputs"):
        gs.quantize_(model, "fp8")

    class MyExperts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj, self.layer = nn.Parameter(torch.ones(2, 64, 64)), nn.Linear(8, 8)

    with pytest.warns(UserWarning, match="MyExperts is no class of experts"):
        mine = gs.quantize_(MyExperts(), "fp8")
    assert isinstance(mine.layer, QuantizedLinear) and mine.up_proj.shape == (2, 64, 64)
    for options, said in (({"inner": 96}, None), ({"width": 80}, "multiple of 64")):
        model = gs.sparsify_(experts(**options), {"*experts*": "2:4", "*": None})
        _, left = quantize_experts(experts_weights(model), "fp8")
        assert not left if said is None else said in next(iter(left.values()))


def test_other_numbers_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gs.sparsify_(experts(), "2:4")
    assert not isinstance(module_of(gs.quantize_(copy.deepcopy(model), "int4")), QuantizedExperts)
    made, left = quantize_experts(experts_weights(model), "int8")
    assert not left and [str(stack.layout) for stack in next(iter(made.values())).stacks.values()] == ["int8 2:4"] * 2
    x, index, shares = torch.randn(4, 64), torch.randint(5, (4, 2)), torch.rand(4, 2)
    with torch.no_grad():
        found, exact = next(iter(made.values()))(x, index, shares), module_of(gs.densify_(model))(x, index, shares)
    assert float((found - exact).abs().max()) < 0.03 * float(exact.abs().max())
    weights = experts_weights(gs.sparsify_(experts(), {"*experts*": "2:4", "*": None}))
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    monkeypatch.setattr(nn.Parameter, "device", torch.device("cuda", 0), raising=False)
    _, left = quantize_experts(weights, "fp8")
    assert "compute capability 9.0, and this GPU has compute capability 8.9" in next(iter(left.values()))


def test_what_is_not_finite_is_named() -> None:
    model = gs.sparsify_(experts(), {"*experts*": "2:4", "*": None})
    with torch.no_grad():
        module_of(model).down_proj[3, 0, :4] *= torch.inf
    with pytest.raises(ValueError, match=r"mlp\.experts\.down_proj: .*not finite"):
        gs.quantize_(model, "fp8")
    assert not isinstance(module_of(model), QuantizedExperts) and type(model.lm_head) is nn.Linear


def test_widths() -> None:
    torch.manual_seed(0)
    eight = torch.stack([gs.VNM("all", 2, 8).select(torch.rand(64, 64)) for _ in range(3)])
    four = torch.stack([gs.NM(2, 4).select(torch.rand(64, 64)) for _ in range(3)])
    one, empty = torch.stack([gs.NM(1, 4).select(torch.rand(64, 64)) for _ in range(3)]), torch.zeros(1, 64, 64) > 1
    assert [width_of_groups(mask) for mask in (eight, four, one)] == [8, 4, 4]
    assert width_of_groups(torch.cat([empty, eight])) == 8  # an expert that is pruned away
    assert width_of_groups(torch.cat([eight, four])) == 4 == width_of_groups(four[:, :, :37])
    assert width_of_groups(empty) is None and width_of_groups(empty[:, :, :0]) is None
    other = torch.stack([eight[0], gs.VNM(32, 2, 8).select(torch.rand(64, 64))])
    assert width_of_groups(other) in (4, None)  # each expert has its own columns, but only one set of them
    assert width_of_groups(four | eight) is None


@torch.no_grad()
def test_odd_columns() -> None:
    model = experts(width=64, inner=90)
    model = gs.sparsify_(model, {"*experts*": "2:4", "*": None})
    names = experts_weights(model)
    for weight in names.values():
        assert weight.shape[1] % 64 in (0, 52)
    _, left = quantize_experts(names, "fp8")
    assert "multiple of 64" in next(iter(left.values()))
    model = gs.quantize_(gs.sparsify_(experts(inner=96), {"*experts*": "2:4", "*": None}), "fp8", where="*experts*")
    module = module_of(model)
    assert module.stacks["down_proj"].shape == (5, 64, 96)
    x, index, shares = torch.randn(4, 64), torch.randint(5, (4, 2)), torch.rand(4, 2)
    found, dense = module(x, index, shares), module.as_dense()(x, index, shares)
    assert float((found - dense).abs().max()) < 0.1 * float(dense.abs().max())


def test_experts_that_are_expected_from_a_file() -> None:
    model = experts()
    text = torch.tensor(list(b"fp8 2:4, float32"), dtype=torch.uint8)
    said = text, {"values": (torch.float8_e4m3fn, (10,)), "scale": (torch.float32, (5,)), "meta": (torch.int32, (2,))}
    path = "model.layers.0.mlp.experts"
    assert not expect_experts(model, {f"{path}.down_proj": said, "nothing.down_proj": said, "lm_head.down_proj": said})
    before = module_of(model)
    both = {f"{path}.down_proj": said, f"{path}.gate_up_proj": said}
    assert expect_experts(model, both) == {path: before} and isinstance(module_of(model), QuantizedExperts)
    assert module_of(model).down_proj_values.shape == (10,) and bool((module_of(model).down_proj_format == text).all())
    assert [*expect_experts(model, both)] == [path]  # quantized ones make room too


def test_close() -> None:
    with pytest.raises(AssertionError):
        close(torch.ones(1), torch.ones(1) * 1.01)
