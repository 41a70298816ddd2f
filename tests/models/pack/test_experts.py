"""Experts are packed one matrix each: the same results, files, copies and training as before."""

import copy
import pickle

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import Stacked
from gossamer.models.pack import examples as pack_examples
from gossamer.models.pack import experts as pack_experts
from gossamer.models.pack import tune as pack_tune
from gossamer.models.pack.experts import has_experts, routed, usual_expert
from gossamer.models.weights import sparse_weights

t = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(pack_tune, "SECONDS", 0.001)
    monkeypatch.setattr(pack_examples, "_SECONDS", 0.001)
    monkeypatch.setattr(pack_tune, "_MARGIN", 1e-6)  # packed is never slower, for these tests


def language_model(kind):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    if kind == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)).eval()
    if kind == "gpt-oss":
        options = {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
        return t.GptOssForCausalLM(t.GptOssConfig(**sizes, **options)).eval()
    options = {"intermediate_size_mlp": 48, "head_dim": 16, "num_experts_per_tok": 1, "num_local_experts": 4}
    return t.Llama4ForCausalLM(t.Llama4TextConfig(**sizes, **options)).eval()


def close(a, b):
    """Sums of at most 48 terms, some layers deep, in another order."""
    torch.testing.assert_close(a, b, rtol=0, atol=48 * 8 * 2**-23 * float(b.detach().abs().max()))


IDS = torch.arange(14).view(2, 7) % 50


def packed(kind, pattern="80%"):
    model = gs.sparsify_(language_model(kind), pattern, where="*experts*")
    before = copy.deepcopy(model)
    report = gs.pack_(model, {"input_ids": IDS}, quiet=True)
    return model, before, report


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss", "llama4"])
@pytest.mark.parametrize("pattern", ["80%", "2:4"])
def test_results_are_those_of_masked_experts(kind, pattern):
    model, before, report = packed(kind, pattern)
    assert len(report.layers) == 2 and not report.skipped
    for layer in report.layers:
        assert layer.format.startswith("Stacked(") and ("order=(1, 0)" in layer.format) == (kind != "mixtral")
    with torch.no_grad(), gs.fallback("error"):
        close(model(IDS).logits, before(IDS).logits)
        close(model(IDS[:1, :1]).logits, before(IDS[:1, :1]).logits)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_whatever_implementation_the_configuration_names(implementation):
    model, before, _ = packed("mixtral")
    model.set_experts_implementation(implementation)
    with torch.no_grad(), gs.fallback("error"):
        close(model(IDS).logits, before(IDS).logits)
    assert model.config._experts_implementation == implementation


def test_copies_files_and_dense_again(tmp_path):
    model, before, _ = packed("mixtral")
    path = tmp_path / "model.safetensors"
    gs.save(model, path)
    loaded = gs.load(language_model("mixtral"), path)
    wanted = model(IDS).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert [str(w.format) for w in sparse_weights(other).values()] == ["Stacked(PackedCSR())"] * 2
        assert torch.equal(other(IDS).logits, wanted)
    fresh = gs.sparsify_(language_model("mixtral"), "80%", where="*experts*")
    fresh.load_state_dict(before.state_dict())
    close(fresh(IDS).logits, wanted)
    gs.densify_(model)
    assert type(model.model.layers[0].mlp.experts.gate_up_proj) is nn.Parameter
    close(model(IDS).logits, wanted)


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss"])
def test_packed_experts_train_as_masked_ones(kind):
    model, before, _ = packed(kind)
    masks = {name: weight.mask() for name, weight in sparse_weights(before).items()}
    for each in (model, before):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            each(IDS, labels=IDS).loss.backward()
            optimizer.step()
    for name, weight in sparse_weights(model).items():
        assert torch.equal(weight.mask(), masks[name])
        close(weight.dense(), sparse_weights(before)[name].dense())


def test_a_compiled_model_is_right():
    model, before, _ = packed("mixtral")
    experts, own = model.model.layers[0].mlp.experts, before.model.layers[0].mlp.experts
    x, index, weights = torch.randn(5, 32), torch.tensor([[0, 1], [2, 0], [3, 1], [1, 2], [0, 3]]), torch.rand(5, 2)
    torch._dynamo.reset()
    with torch.no_grad():
        close(torch.compile(experts, backend="eager")(x, index, weights), own(x, index, weights))


def test_what_experts_see():
    experts = language_model("mixtral").model.layers[0].mlp.experts
    assert has_experts(experts) and not has_experts(nn.Linear(4, 4))
    index = torch.tensor([[0, 1], [0, 3], [0, 1], [0, 4]])  # 4: for none of them
    assert routed(experts, (torch.ones(4, 32), index)) == [4, 2, 1]
    assert routed(experts, (torch.ones(12, 32),)) == [4, 4, 4, 4]  # 3 each, to the next power of two
    assert routed(experts, (torch.ones(0, 32), index[:0])) == []
    model = gs.sparsify_(language_model("mixtral"), "80%", where="*experts*")
    report = gs.pack_(model, {"input_ids": IDS}, quiet=True)
    assert all(set(layer.tokens) <= {1, 2, 4, 8, 16} for layer in report.layers)


def test_the_usual_expert_has_a_median_of_values():
    mask = torch.zeros(5, 2, 3, dtype=torch.bool)
    for expert, kept in enumerate([6, 0, 3, 1, 5]):
        mask[expert].view(-1)[:kept] = True
    dense = torch.arange(30.0).view(5, 2, 3)
    matrix, its = usual_expert(dense, mask)
    assert torch.equal(matrix, dense[2]) and int(its.sum()) == 3


def test_without_examples_and_without_measuring():
    model = gs.sparsify_(language_model("gpt-oss"), "95%", where="*experts*")
    before = model(IDS).logits
    report = gs.pack_(model, tune=False, quiet=True)
    assert [layer.tokens for layer in report.layers] == [(1, 16, 128)] * 2
    close(model(IDS).logits, before)


class MyExperts(nn.Module):
    """Someone's own experts, which index by a number."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 24, 16))
        self.down_proj = nn.Parameter(torch.randn(3, 16, 24))

    def forward(self, x):
        return sum(
            nn.functional.linear(nn.functional.linear(x, self.up[e]).relu(), self.down_proj[e]) for e in range(3)
        )


def test_experts_of_users():
    model = gs.sparsify_(nn.Sequential(MyExperts(), nn.Linear(16, 16)), "75%")
    x = torch.randn(6, 16)
    before = model(x)
    report = gs.pack_(model, x, quiet=True)
    assert [isinstance(w.format, Stacked) for w in sparse_weights(model).values()] == [True, True, False]
    assert len(report.layers) == 3
    with gs.fallback("error"):
        close(model(x), before)


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss", "llama4"])
def test_folders_of_transformers_keep_packed_experts(kind, tmp_path):
    model, _, _ = packed(kind)
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path).eval()
    formats = [weight.format for weight in sparse_weights(back).values()]
    assert formats == [weight.format for weight in sparse_weights(model).values()] and len(formats) == 2
    assert torch.equal(back(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize(
    ("how", "dtype", "found"),
    [
        ("2:4", torch.bfloat16, "PackedVNM('all', 2, 4)"), ("all:2:8", torch.float16, "PackedVNM('all', 2, 8)"),
        ("all:2:8", torch.float32, None), ("90%", torch.bfloat16, None), ("64:2:8", torch.bfloat16, None),
    ],
)  # fmt: skip
def test_what_fits_a_gpu(how, dtype, found, monkeypatch):
    monkeypatch.setattr(pack_experts, "capability", lambda device: (9, 0))
    sizes = {"vocab_size": 8, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
    model = gs.sparsify_(t.MixtralForCausalLM(t.MixtralConfig(**sizes)), {"*gate_up_proj": how, "*": None})
    (weight,) = sparse_weights(model).values()
    formats = pack_experts._on_a_gpu(weight.module, weight.mask(), dtype)
    assert [str(format) for format in formats] == ([found] if found else [])
    one = weight.mask().clone()
    one[1, 0] = True  # a row of another expert that keeps everything
    assert not pack_experts._on_a_gpu(weight.module, one, dtype)
    monkeypatch.setattr(pack_experts, "capability", lambda device: (8, 0))
    assert not pack_experts._on_a_gpu(weight.module, weight.mask(), dtype)
