"""Smaller layers with the same outputs."""

import pytest
import torch
from torch import nn

import gossamer as gs


def network(*between, bias=True):
    torch.manual_seed(0)
    layers = [nn.Linear(8, 12, bias=bias), *between, nn.Linear(12, 6, bias=bias), *between, nn.Linear(6, 4, bias=bias)]
    return nn.Sequential(*layers)


def linears(model):
    return [m for m in model.modules() if isinstance(m, nn.Linear)]


def clear(layer, rows=(), columns=()):
    with torch.no_grad():
        layer.weight[list(rows)] = 0
        layer.weight[:, list(columns)] = 0


def shrunk(model, x):
    model.eval()
    before = model(x)
    found = gs.nn.shrink_(model)
    after = model(x)
    # sums of at most 12 terms, in another order
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    return found


def test_by_hand():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0], [2.0]]))
        model[0].bias.copy_(torch.tensor([3.0, 0.5]))
        model[2].weight.copy_(torch.tensor([[10.0, 1.0]]))
        model[2].bias.copy_(torch.tensor([1.0]))
    assert gs.nn.shrink_(model) == {"0": (2, 1)}
    assert model[2].bias.tolist() == [31.0] and model[2].weight.tolist() == [[1.0]]  # 10 x relu(3) is in the bias
    assert model(torch.tensor([[1.0]])).tolist() == [[33.5]]


@pytest.mark.parametrize("between", [(), (nn.ReLU(),), (nn.GELU(), nn.Dropout(0.5)), (nn.Sigmoid(),), (nn.ReLU(True),)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_stay(between, bias):
    model = network(*between, bias=bias)
    first, second, _ = linears(model)
    clear(first, rows=range(3))
    clear(second, rows=[0], columns=[5, 6])
    found = shrunk(model, torch.randn(5, 8))
    constant = not bias and any(isinstance(m, nn.Sigmoid) for m in between)  # 0.5, and no bias to move it to
    assert found == ({"0": (12, 10)} if constant else {"0": (12, 7), str(1 + len(between)): (6, 5)})
    assert all(m.weight.shape == (m.out_features, m.in_features) for m in linears(model))


def test_a_removed_neuron_frees_others():
    model = network(nn.ReLU())
    _, second, third = linears(model)
    clear(third, columns=[0])  # nobody reads neuron 0 of the second layer
    with torch.no_grad():
        second.weight[1:, 4] = 0  # which alone reads neuron 4 of the first
    assert shrunk(model, torch.randn(5, 8)) == {"0": (12, 11), "2": (6, 5)}


@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR(), gs.formats.PackedCSR()], ids=str)
def test_sparse_layers_keep_their_format_and_masks(format):
    model = network(nn.ReLU())
    clear(linears(model)[0], rows=range(4))
    gs.sparsify_(model, {"0": "50%", "2": "50%"}, format=format)
    kept = int(model[0].weight.nnz)
    assert shrunk(model, torch.randn(5, 8))["0"][1] <= 8
    assert gs.nn.all_weights(model)["0.weight"].format == format
    assert model[0].weight.nnz == kept and model[0].weight.shape == (model[0].out_features, 8)
    loss = model(torch.randn(2, 8)).sum()
    loss.backward()
    torch.optim.AdamW(model.parameters()).step()
    assert model[0].weight.nnz == kept


def test_ablated_neurons_of_srigl():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.SRigL(model, optimizer, 0.9, every=1, until=5, gamma=1.0, min_salient=1)
    for _ in range(5):
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    method.close()
    ablated = method.log()["layers"]["0.weight"]["ablated"]
    assert ablated > 0
    before, after = shrunk(model, torch.randn(5, 20))["0"]
    assert before == 64 and after <= 64 - ablated
    again = gs.densify_(model)
    assert again[0].weight.shape == (after, 20)


def test_blocks_that_are_known():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    clear(model.linear1, rows=range(5))
    assert shrunk(model, torch.randn(2, 3, 8)) == {"linear1": (16, 11)}


def test_gated_mlp_of_transformers():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2)
    torch.manual_seed(0)
    model = llama.LlamaMLP(config)
    clear(model.gate_proj, rows=[0, 1])
    clear(model.up_proj, rows=[1, 2])
    clear(model.down_proj, columns=[3])
    assert shrunk(model, torch.randn(3, 8)) == {"gate_proj": (16, 12), "up_proj": (16, 12)}


def test_what_is_left_alone():
    model = network(nn.BatchNorm1d(12))[:3]  # not known to be element-wise
    clear(model[0], rows=[0])
    assert gs.nn.shrink_(model) == {}
    model = network(nn.ReLU())
    model.other = model[0]  # somebody else may read it
    clear(model[0], rows=[0])
    assert gs.nn.shrink_(nn.ModuleList([model, model[0]])) == {}
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    clear(model[0], rows=[0])
    assert gs.nn.shrink_(model) == {}
    model = network(nn.ReLU())
    clear(linears(model)[1], rows=range(6))
    assert gs.nn.shrink_(model)["2"] == (6, 1)  # a layer keeps a neuron


def test_a_shrunk_model_of_transformers_is_saved_and_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).eval()
    gs.sparsify_(model, {"*.down_proj": "all:2:8", "*.mlp.*": "2:4", "*": None})
    ids = torch.randint(64, (2, 7))
    with torch.no_grad():
        expected = model(ids).logits
        assert len(gs.nn.shrink_(model)) == 4 and model.config.intermediate_size == 32
        model.save_pretrained(tmp_path)
        again = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
        torch.testing.assert_close(again(ids).logits, expected, rtol=1e-5, atol=1e-5)
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes))
    gs.sparsify_(other, {"*.0.mlp.down_proj": "all:2:8", "*": None})
    assert len(gs.nn.shrink_(other)) == 2 and other.config.intermediate_size == 64  # sizes differ
