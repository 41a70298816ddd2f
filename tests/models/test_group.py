"""Layers that read the same input: which go together, that they compute the same, and that nobody else sees it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import gossamer as gs
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.weight import quantized
from gossamer.models.group import Group, divided, group_, joined
from gossamer.models.quantized import QuantizedLinear
from tests.kernels.quantized.test_weight import weight


class Block(nn.Module):
    """Reads x by three layers, and what comes of it by two."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(128, rows, bias=bias) for rows in (128, 64, 64))
        self.gate, self.up = (nn.Linear(256, 192, bias=False) for _ in range(2))
        self.down = nn.Linear(192, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.q(x), self.k(x), self.v(x)], -1)
        return self.down(torch.relu(self.gate(x)) * self.up(x))


def block(pattern: Any = "2:4", how: Any = "fp8", bias: bool = False) -> Block:
    torch.manual_seed(0)
    model = Block(bias)
    gs.quantize_(model if pattern is None else gs.sparsify_(model, pattern), how)
    return model


@pytest.mark.parametrize("layout", [Layout("fp8"), Layout("int8", "all", 4), Layout("fp8", 64, 4, True)], ids=str)
def test_joined_and_divided(layout: Layout) -> None:
    rows = [128, 64, 192]
    weights = [quantized(weight(count, 264, layout) + 0, layout) for count in rows]
    whole = joined(weights, layout, rows, 264)
    for one, other in zip(divided(whole, layout, rows, 264), weights, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None and b is None) or torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("pattern", [None, "2:4", "60%"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_numbers(pattern: Any, dtype: torch.dtype) -> None:
    model, x = block(pattern), torch.randn(2, 5, 128).to(dtype)
    with torch.no_grad():
        expected, first = (
            model(x),
            model(x[:1]),
        )  # torch's own products of five tokens and of ten differ on some machines
        assert group_(model, x) == [("gate", "up"), ("q", "k", "v")]
        assert torch.equal(model(x), expected) and torch.equal(model(x[:1]), first)
        assert model.q._group[0].ready is None and model.gate._group[0].ready is None
        alone = model.k(x)  # one of them only
        assert torch.equal(alone, block(pattern).k(x)) and torch.equal(model(x), expected)
        with torch.inference_mode():
            assert torch.equal(model(x), expected)
    grad = x.clone().requires_grad_()
    model(grad).sum().backward()
    assert grad.grad is not None and bool(grad.grad.isfinite().all())


def test_what_does_not_go_together() -> None:
    x = torch.randn(3, 128)
    assert group_(block(bias=True), x) == [("gate", "up")]
    assert group_(block(gs.VNM("all", 2, 8)), x) == []  # each layer has columns of its own
    assert group_(block("2:4", "int4"), x) == []
    mixed = block()
    mixed.k.repack(Layout("fp8"))
    assert group_(mixed, x) == [("gate", "up")]
    assert group_(block(), None) == [] and group_(nn.Linear(2, 2), torch.ones(1, 2)) == []

    class Changes(Block):
        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x)
            x.mul_(2)
            return super().forward(x) + q.sum()

    assert ("q", "k", "v") not in group_(gs.quantize_(Changes(), "fp8"), x.clone())


def test_v_n_m_with_the_same_columns_goes_together() -> None:
    model, x = Block(), torch.randn(3, 128)
    mask = gs.VNM("all", 2, 8).select(torch.rand(256, 128))
    with torch.no_grad():
        for layer, kept in zip((model.q, model.k, model.v), mask.split((128, 64, 64)), strict=True):
            layer.weight.mul_(kept)
    gs.quantize_(model, "fp8")
    with torch.no_grad():
        expected = model(x)
        assert ("q", "k", "v") in group_(model, x)
        torch.testing.assert_close(model(x), expected)


def test_others_see_layers(tmp_path: Path) -> None:
    model, x = block(), torch.randn(3, 128)
    state, expected, text = model.state_dict(), model(x), repr(model)
    group_(model, x)
    again = model.state_dict()
    assert set(state) == set(again) and repr(model) == text
    assert all(torch.equal(state[name].view(torch.uint8), again[name].view(torch.uint8)) for name in state)
    assert gs.summary(model).bytes == gs.summary(block()).bytes
    gs.save(model, tmp_path / "model.safetensors")
    assert torch.equal(gs.load(Block(), tmp_path / "model.safetensors")(x), expected)
    other = copy.deepcopy(model)
    assert other.q._group[0] is other.k._group[0] is not model.q._group[0] and torch.equal(other(x), expected)
    other.load_state_dict(state)
    assert other.q._group is None and torch.equal(other(x), expected)
    half = copy.deepcopy(model).half()
    assert half.q._group is not None and half(x.half()).dtype is torch.float16
    model.q.repack(Layout("fp8"))
    assert model.q._group is None
    torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
    assert type(gs.densify_(model).k) is nn.Linear


def test_compiled_and_exported() -> None:
    model, x = block(), torch.randn(3, 128)
    with torch.no_grad():
        expected = model(x)
        group_(model, x)
        seen = []

        def look(graph: Any, inputs: Any) -> Any:
            seen.append(sum(node.target is torch.ops.gossamer.vnm_8bit.default for node in graph.graph.nodes))
            return graph.forward

        torch.testing.assert_close(torch.compile(model, backend=look, fullgraph=True)(x), expected)
        assert seen == [3]  # q k v, gate up, down
        torch.testing.assert_close(torch.export.export(model, (x,), strict=False).module()(x), expected)


def test_a_language_model(tmp_path: Path) -> None:
    config = tf.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = gs.quantize_(gs.sparsify_(tf.LlamaForCausalLM(config).eval(), {"lm_head": None, "*": "2:4"}), "fp8")
    ids = torch.randint(64, (2, 7))
    with torch.no_grad():
        expected = model(ids).logits
        groups = group_(model, [ids, {"input_ids": ids[:, :1]}])
        assert len(groups) == 4 and ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj") in groups
        torch.testing.assert_close(model(ids).logits, expected)
        model.generate(ids, max_new_tokens=3, do_sample=False)
        model.save_pretrained(tmp_path)
        loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(loaded(ids).logits, expected)


def test_another_input_between_two_layers() -> None:
    model, x = block(), torch.randn(3, 128)
    group_(model, x)
    group = model.q._group[0]
    assert isinstance(group, Group) and isinstance(model.q, QuantizedLinear)
    with torch.no_grad():
        first, other = model.q(x), model.k(x + 1)
        fresh = block()
        assert torch.equal(first, fresh.q(x)) and torch.equal(other, fresh.k(x + 1))
