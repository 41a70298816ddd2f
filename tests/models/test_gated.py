"""Gated MLPs: which are found, that one kernel computes them, and that nobody else sees it."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.models import gated
from gossamer.models.gated import Gated, gates_and_ups, parts_of
from gossamer.models.group import group_


class Mlp(nn.Module):
    def __init__(self, width=64, inner=128, bias=False, act=None, form="silu"):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, inner, bias=bias) for _ in range(2))
        self.w2, self.act, self.form = nn.Linear(inner, width, bias=False), act, form

    def forward(self, x):
        if self.act is not None:
            return self.w2(self.w3(x) * self.act(self.w1(x)))
        return self.w2(getattr(F, self.form)(self.w1(x)) * self.w3(x))


class Other(Mlp):
    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)) + self.w3(x))


class Between(Mlp):
    def forward(self, x):
        return self.w2(F.dropout(torch.relu(self.w1(x)) * self.w3(x), 0.1, self.training))


class Twice(Mlp):
    def forward(self, x, y=None):
        return self.w2(torch.relu(self.w1(x)) * self.w3(x if y is None else y))


class Depends(Mlp):
    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)) * self.w3(x)) if x.shape[0] > 1 else x


def test_which_are_found():
    assert parts_of(Mlp())[:3] == ("w1", "w3", "w2") and parts_of(Mlp(act=nn.SiLU()))[:3] == ("w1", "w3", "w2")
    assert parts_of(Mlp(form="gelu"))[:3] == ("w1", "w3", "w2")
    for other in (
        Other(),
        Between(),
        Twice(),
        Depends(),
        Mlp(form="softmax"),
        Mlp(act=nn.Softmax(-1)),
        nn.Linear(2, 2),
    ):
        assert parts_of(other) is None, other


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mistral", "Gemma"])
def test_models_of_transformers(kind):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = getattr(tf, f"{kind}Model")(getattr(tf, f"{kind}Config")(vocab_size=32, head_dim=16, **sizes))
    found = gates_and_ups(model)
    if kind == "Gemma":  # tanh, which works element by element no less, but by a module that we don't know
        assert found == []
    else:
        assert found == [(layer.mlp.gate_proj, layer.mlp.up_proj) for layer in model.layers]


@pytest.fixture
def launches(monkeypatch):
    """Let a CPU do what a GPU does; returns the calls."""
    made, run = [], torch.ops.gossamer.vnm_gated.default

    class Seen:
        @staticmethod
        def default(*operands):
            made.append(operands)
            return run(*operands)

    monkeypatch.setattr(gated, "_on_hopper", lambda x: type(x) is torch.Tensor)
    monkeypatch.setattr(torch.ops.gossamer, "vnm_gated", Seen)
    return made


def packed(m=8, dtype=torch.bfloat16, **options):
    torch.manual_seed(0)
    model = nn.Sequential(Mlp(**options)).to(dtype)
    return gs.sparsify_(model, gs.VNM("all", 2, m), format=PackedVNM("all", 2, m))


def close(one, other, by=0.01):
    assert (one.float() - other.float()).norm() <= by * other.float().norm()


@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("options", [{}, {"act": nn.SiLU()}, {"form": "gelu"}, {"form": "relu"}], ids=str)
def test_one_kernel(launches, m, options):
    model, x = packed(m, **options), torch.randn(2, 3, 64).bfloat16()
    with torch.no_grad():
        expected = model(x)
        assert group_(model, x) == [("0.w1", "0.w3")]
        close(model(x), expected)
        assert len(launches) == 1
        close(model[0].w1(x), F.linear(x, model[0].w1.weight.to_dense()))  # a layer that is called itself
    with torch.inference_mode():
        close(model(x.clone()), expected)
    assert len(launches) == 2


def test_in_eight_bits(launches):
    torch.manual_seed(0)
    model, x = nn.Sequential(Mlp()).bfloat16(), torch.randn(5, 64).bfloat16()
    gs.quantize_(gs.sparsify_(model, "all:2:8"), "fp8")
    with torch.no_grad():
        expected = model(x)
        assert group_(model, x) == [("0.w1", "0.w3")]
        launches.clear()  # of the example
        close(model(x), expected, 0.03)  # what is rounded once is quantized next
    assert len(launches) == 1 and set(model.state_dict()) >= {"0.w1.values", "0.w3.values", "0.w2.scale"}


def test_the_class_computes_what_the_kernel_does_not_take(launches):
    model, x = packed(act=nn.SiLU()), torch.randn(4, 64).bfloat16()
    group_(model, x)
    model(x).sum().backward()
    assert model[0].w1.weight_values.grad is not None and not launches
    with torch.no_grad():
        expected = model(x)
        assert len(launches) == 1
        seen = []
        handle = model[0].w3.register_forward_hook(lambda *given: seen.append(given))
        close(model(x), expected)
        handle.remove()
        assert len(seen) == 1 and len(launches) == 1
        with torch.autocast("cpu", torch.bfloat16):
            close(model(x), expected)
        model.float()
        model.bfloat16()
        close(model(x[:0]), expected[:0])
        assert len(launches) == 1
        close(model(x), expected)
        assert len(launches) == 2
        model[0].act = nn.ReLU()
        close(model(x), packed(act=nn.ReLU())(x))  # as it is now
        assert len(launches) == 3 and launches[-1][-1] == 1
        model[0].w3.weight_values.data.zero_()
        assert not model(x).any()  # weights are read where they are


def test_many_tokens_of_wide_layers_are_two_products(launches):
    model = packed(4, width=4096)
    x = torch.randn(129, 4096).bfloat16() / 64
    with torch.no_grad():
        expected = packed(4, width=4096)(x)
        group_(model, x[:2])
        launches.clear()
        close(model(x), expected)
        assert not launches
        close(model(x[:128]), expected[:128])
        assert len(launches) == 1


def test_other_columns_and_other_formats(launches):
    x = torch.randn(3, 64).bfloat16()
    model, other = packed(), packed()
    shuffled = gs.sparsify(torch.randn(128, 64).bfloat16(), "all:2:8", format=gs.Dense())
    gs.nn.all_weights(other)["0.w3.weight"].become(shuffled, shuffled != 0, PackedVNM("all", 2, 8))
    assert group_(other, x) == []  # other columns
    with torch.no_grad():
        group_(model, x)
        model(x)
        gs.nn.all_weights(model)["0.w3.weight"].become(shuffled, shuffled != 0, PackedVNM("all", 2, 8))
        close(model(x), other(x))
        assert len(launches) == 1  # only the first
    assert group_(packed(bias=True), x) == [] and group_(packed(4, torch.float32), x.float()) == [("0.w1", "0.w3")]
    assert group_(gs.sparsify_(nn.Sequential(Mlp()), "2:4"), x.float()) == []  # masked


def test_nobody_else_sees_it(launches, tmp_path):
    model, x = packed(), torch.randn(4, 64).bfloat16()
    names, plain = list(model.state_dict()), copy.deepcopy(model)
    group_(model, x)
    with torch.no_grad():
        expected = model(x)
    assert list(model.state_dict()) == names and isinstance(model[0].__dict__["forward"], Gated)
    plain.load_state_dict(model.state_dict())
    gs.save(model, tmp_path / "model.safetensors")
    again = packed()
    gs.load(again, tmp_path / "model.safetensors")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), plain, again):
        with torch.no_grad():
            close(other(x), expected)
    twin = copy.deepcopy(model)
    assert twin[0].__dict__["forward"].mlp is twin[0]
    assert len(launches) == 3  # the model, its copy and what was unpickled
    gs.densify_(model)
    assert "forward" not in model[0].__dict__ and type(model[0].w1) is nn.Linear


def test_a_trace_gathers_by_torch(launches, monkeypatch):
    model, x = packed(width=128), torch.randn(4, 128).bfloat16()
    group_(model, x)
    monkeypatch.undo()
    monkeypatch.setattr(gated, "_on_hopper", lambda x: True)
    with torch.no_grad():
        expected = packed(width=128)(x)
        seen = []

        def backend(graph, _):
            seen.extend(str(node.target) for node in graph.graph.nodes)
            return graph

        close(torch.compile(model, backend=backend, fullgraph=True)(x), expected)
    assert seen.count("gossamer.vnm_gated.default") == 1 and "index_select" in seen


def test_lora_is_added_to_the_layers(launches):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=32, **sizes)).eval()
    gs.sparsify_(model, {"*mlp*": "2:4", "*": None}, format=PackedVNM("all", 2, 4))
    ids = torch.randint(32, (2, 5))
    assert len(group_(model, {"input_ids": ids})) == 1
    with torch.no_grad():
        expected = model(ids).logits
        tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["gate_proj"], r=2, lora_alpha=4))
        before = len(launches)
        torch.testing.assert_close(tuned(ids).logits, expected, rtol=1e-3, atol=1e-3)
        assert len(launches) == before  # the gate is another layer now
