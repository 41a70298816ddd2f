import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.prune.walk import Walk
from tests.prune.networks import METHODS, distance


def test_convolutional_network():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
            self.depth, self.two = nn.Conv2d(16, 16, 3, groups=16, padding=1), nn.Conv2d(16, 16, 3, stride=2)
            self.line, self.head = nn.Conv1d(16, 16, 3), nn.Linear(16, 5)

        def forward(self, x):
            x = self.norm(self.one(x)).relu_()
            x = x + self.depth(x)
            return self.head(self.line(self.two(x).flatten(2)).mean(2))

    dense, data = Net().eval(), [torch.randn(4, 3, 12, 12) for _ in range(3)]
    found = {}
    for method in METHODS:
        model = copy.deepcopy(dense)
        report = gs.prune.oneshot(model, {"depth": None, "*": "50%"}, data, method=method)
        assert len(report.layers) == 4 and not any(row.notes for row in report.layers)
        found[str(method)] = distance(model, dense, data)
    assert found["sparsegpt"] < found["wanda"] < found["magnitude"]
    gs.prune.oneshot(dense, {"depth": "1:3", "*": None}, data, method="sparsegpt")
    assert dense.depth.weight.sparsity == pytest.approx(2 / 3)


def causal(kind):
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if kind == "gpt2":
        config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
        return GPT2LMHeadModel(config).eval()
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_causal_language_models(kind, method):
    dense = causal(kind)
    ids = [torch.randint(0, 64, (2, 12)) for _ in range(3)]
    data = [{"input_ids": x, "labels": x} for x in ids]
    model = copy.deepcopy(dense)
    report = gs.prune.oneshot(model, "2:4", data, method=method)
    names = [row.name for row in report.layers]
    assert len(names) == (8 if kind == "gpt2" else 15)  # GPT-2's head is its embedding, and stays
    assert not any(row.notes for row in report.layers) and report.sparsity_of_taken == pytest.approx(0.5)
    if kind == "gpt2":  # Conv1D holds [inputs, outputs]: the groups of 4 run along the inputs
        mask = model.transformer.h[0].mlp.c_fc.weight.mask()
        assert (mask.view(8, 4, -1).sum(1) == 2).all()
        assert not isinstance(model.lm_head.weight, gs.SparseTensor)
    with torch.no_grad():
        assert model(ids[0]).logits.isfinite().all()


def test_blocks_of_a_language_model_see_pruned_inputs():
    model = causal("llama")
    data = [{"input_ids": torch.randint(0, 64, (2, 12))}]
    dense = copy.deepcopy(model)
    alone = gs.prune.SparseGPT(target="layer")  # as published, a layer knows nothing of the dense model
    gs.prune.oneshot(model, "2:4", data, method=alone)
    seen = []
    for one in (model, dense):
        with torch.no_grad():
            seen.append(one.model(**data[0]).last_hidden_state)
    only_head = copy.deepcopy(dense)
    with torch.no_grad():
        only_head.load_state_dict(
            {k: v.to_dense() if isinstance(v, gs.SparseTensor) else v for k, v in model.state_dict().items()}
        )
        only_head.lm_head.weight.copy_(dense.lm_head.weight)
    again = gs.prune.oneshot(only_head, "2:4", data, method=alone, where="lm_head")
    assert torch.allclose(only_head.lm_head.weight.to_dense(), model.lm_head.weight.to_dense(), atol=1e-5) and again


def test_bert_with_padding():
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertModel(config).eval()
    mask = torch.ones(4, 10, dtype=torch.int64)
    mask[:, 7:] = 0
    data = [{"input_ids": torch.randint(0, 64, (4, 10)), "attention_mask": mask}]
    for method in METHODS:
        report = gs.prune.oneshot(copy.deepcopy(model), "8:2:8", data, method=method)
        assert len(report.layers) == 13 and report.sparsity_of_taken == pytest.approx(0.75)


def test_torch_s_own_transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    report = gs.prune.oneshot(model, "2:4", [torch.randn(2, 5, 16)], method="sparsegpt")
    names = [row.name for row in report.layers]
    assert "layers.0.self_attn.in_proj_weight" in names and "layers.1.self_attn.out_proj.weight" in names
    assert not any(row.notes for row in report.layers)
    assert torch.backends.mha.get_fastpath_enabled()


def test_transposed_convolutions_are_calibrated():
    dense = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, groups=2)
    ).eval()
    data = list((torch.randn(2, 4, 5, 5, 4) @ torch.randn(4, 4)).movedim(-1, 2))  # channels that go together
    found = {}
    for method in ("magnitude", "sparsegpt"):
        model = copy.deepcopy(dense)
        report = gs.prune.oneshot(model, "50%", data, method=method)
        assert not any(row.notes for row in report.layers)
        found[method] = distance(model, dense, data)
    assert found["sparsegpt"] < 0.8 * found["magnitude"]
    model = copy.deepcopy(dense)
    gs.prune.oneshot(model, "1:3", data)  # groups of 3 run along the inputs and the window of an output
    mask = model[0].weight.mask().transpose(0, 1).reshape(8, 36)
    assert (mask.view(8, 12, 3).sum(2) == 1).all()


def test_cross_attention_is_three_layers_with_their_own_inputs():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x, y):
            return self.attention(x, y, y, need_weights=False)[0]

    model = Cross().eval()
    data = [(torch.randn(2, 5, 16), 10 * torch.randn(2, 7, 16))]
    report = gs.prune.oneshot(model, "50%", data, method="sparsegpt")
    assert [row.name for row in report.layers] == ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert not any(row.notes for row in report.layers)
    thirds = model.attention.in_proj_weight.mask().view(3, -1).sum(1)
    assert thirds.tolist() == [128, 128, 128]


def experts(kind):
    pytest.importorskip("transformers")
    import transformers as t

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    if kind == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**sizes)).eval()
    if kind == "gpt_oss":
        return t.GptOssForCausalLM(t.GptOssConfig(**sizes, head_dim=16, num_experts_per_tok=2)).eval()
    config = t.Llama4TextConfig(**sizes, intermediate_size_mlp=48, head_dim=16, num_experts_per_tok=1)
    return t.Llama4ForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss", "llama4"])
@pytest.mark.parametrize("method", ["magnitude", "sparsegpt", "obs"])
def test_experts_are_pruned_and_counted(kind, method):
    model = experts(kind)
    data = [{"input_ids": torch.randint(0, 64, (4, 32))} for _ in range(4)]
    before = model.config._experts_implementation
    report = gs.prune.oneshot(model, "2:4", data, method=method)
    assert model.config._experts_implementation == before
    rows = {row.name: row for row in report.layers}
    held = [n for n, p in model.named_parameters() if ".experts." in n and p.dim() == 3]
    assert len(held) == 4 and all(rows[name].sparsity == pytest.approx(0.5) for name in held)
    assert not any(rows[name].notes for name in held) or method == "obs"
    assert all(rows[name].error > 0 for name in held)
    zeros = sum(int((p.detach().to_dense() == 0).sum()) for p in (model.get_parameter(n) for n in held))
    assert zeros >= sum(model.get_parameter(n).numel() for n in held) // 2
    inputs = 1 if kind != "mixtral" else 2  # where the inputs are
    mask = model.get_parameter(held[0]).mask().movedim(inputs, 2)
    assert (mask.reshape(-1, 4).sum(1) == 2).all()
    assert report.sparsity > 0.4


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt", gs.prune.OBS("hessian")], ids=str)
def test_a_wide_layer_is_pruned_by_blocks_of_its_hessian(method):
    dense, data = nn.Linear(600, 8), [torch.randn(64, 600)]
    for how in ("2:4", "1:5", "50%", "block 1x4 50%", "|x| > 0.02"):
        model = copy.deepcopy(dense)
        report = gs.prune.oneshot(model, how, data, method=method, memory=4 * 4 * 600 * 256)
        (row,) = report.layers
        assert row.error is not None and model.weight.to_dense().isfinite().all()
        assert "diagonal blocks of" in row.notes[0]
        mask = model.weight.mask()
        assert torch.equal(gs.patterns.as_pattern(how).select(mask.float()), mask) or how.startswith("|x|")


@pytest.mark.slow
def test_a_convolution_with_65536_inputs(monkeypatch):
    """X X^T would take 17 GB."""
    model, data, taken = nn.Conv2d(1024, 8, 8), [torch.randn(4, 1024, 8, 8)], []
    inputs = Walk.inputs

    def seen(*args):
        grams = inputs(*args)
        taken.extend(sum(part.nbytes for part in gram.parts) for gram in grams.values())
        return grams

    monkeypatch.setattr(Walk, "inputs", seen)
    for method in ("magnitude", "sparsegpt"):
        report = gs.prune.oneshot(copy.deepcopy(model), "2:4", data, method=method, memory=1e9)
        assert report.error is not None and report.sparsity_of_taken == 0.5
    assert len(taken) == 2 and max(taken) <= 0.25e9
    assert "X X^T would take 17.2 GB" in report.layers[0].notes[0]


@pytest.mark.parametrize("kind", [gs.prune.SparseGPT, lambda target: gs.prune.OBS("hessian", target=target)])
def test_layers_that_follow_the_dense_model_end_closer_to_it(kind):
    """On inputs that were not seen, of a deep network whose errors add up."""
    torch.manual_seed(1)
    dense = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(32, 32), nn.Tanh())])
    mix = torch.randn(32, 32) / 4
    data, fresh = ([torch.randn(200, 32) @ mix for _ in range(4)] for _ in range(2))
    found = {}
    for target in ("layer", "model"):
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, "2:4", data, method=kind(target=target))
        found[target] = distance(model, dense, fresh)
    assert found["model"] < 0.9 * found["layer"]


def test_the_model_is_dense_until_its_block_is_done(monkeypatch):
    model = causal("llama")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    real = gs.prune.job.Job._together

    def failing(self, team, gram):
        if team[0].name.endswith("layers.1.mlp.up_proj.weight"):
            raise RuntimeError("stop")
        return real(self, team, gram)

    monkeypatch.setattr(gs.prune.job.Job, "_together", failing)
    data = [{"input_ids": torch.randint(0, 64, (2, 12))}]
    with pytest.raises(RuntimeError, match="stop"):
        gs.prune.oneshot(model, "2:4", data)
    for name, parameter in model.named_parameters():
        done = "layers.0." in name and "proj" in name
        assert torch.equal(parameter.detach(), before[name]) != done, name


def columns_of(weight):
    return weight.mask().any(0)


@pytest.mark.parametrize("method", ["wanda", "sparsegpt", gs.prune.OBS("hessian"), gs.prune.SparseGPT(target="layer")])
def test_layers_with_the_same_input_share_columns(method, tmp_path):
    model = causal("llama")
    data = [{"input_ids": torch.randint(0, 64, (2, 12))} for _ in range(2)]
    how = {"*self_attn.*": gs.VNM("all", 2, 8), "*mlp.*": "all:2:8", "*": None}
    alone = copy.deepcopy(model)
    report = gs.prune.oneshot(model, how, data, method=method, checkpoint=tmp_path)
    for layer in model.model.layers:
        q, k, v, o = (getattr(layer.self_attn, f"{name}_proj").weight for name in "qkvo")
        gate, up, down = (getattr(layer.mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
        for group in ((q, k, v), (gate, up)):
            assert all(torch.equal(columns_of(each), columns_of(group[0])) for each in group)
            assert int(columns_of(group[0]).sum()) == group[0].shape[1] // 2
        assert not torch.equal(columns_of(o), columns_of(q)) and not torch.equal(columns_of(down)[:32], columns_of(up))
        assert all(weight.sparsity == 0.75 for weight in (q, k, v, o, gate, up, down))
    assert len(report.layers) == 14 and all(row.error is not None for row in report.layers)
    again = gs.prune.oneshot(alone, how, data, method=method, checkpoint=tmp_path)  # from the folder
    assert [row.error for row in again.layers] == [row.error for row in report.layers]
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one.detach(), other.detach())


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_joint_choice_is_that_of_one_tall_matrix(calibrated):
    model = causal("llama")
    mlp = copy.deepcopy(model.model.layers[0].mlp)
    tall = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach()
    data = [{"input_ids": torch.arange(12)[None]}] if calibrated else None
    gs.prune.oneshot(model, {"*mlp.*": "all:2:8", "*": None}, data, method="magnitude")
    pruned = model.model.layers[0].mlp
    got = torch.cat([pruned.gate_proj.weight.mask(), pruned.up_proj.weight.mask()])
    assert torch.equal(got, gs.VNM("all", 2, 8).select(tall.abs()))
    assert torch.equal(pruned.down_proj.weight.mask(), gs.VNM("all", 2, 8).select(mlp.down_proj.weight.detach().abs()))


def test_padding_tokens_are_left_out():
    pytest.importorskip("transformers")
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    dense = BertModel(config).eval()
    ids = torch.randint(0, 64, (3, 6))
    padded = torch.cat([ids, torch.randint(0, 64, (3, 5))], 1)
    mask = torch.tensor([[1] * 6 + [0] * 5] * 3)
    found = []
    for batch in ({"input_ids": ids}, {"input_ids": padded, "attention_mask": mask}):
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, {"pooler*": None, "*": "2:4"}, [batch])
        found.append({n: p.detach().to_dense() for n, p in gs.nn.sparse_parameters(model).items()})
    for name, weight in found[0].items():
        torch.testing.assert_close(weight, found[1][name], rtol=1e-3, atol=1e-4)


def test_a_target_that_is_none():
    with pytest.raises(ValueError, match='target must be "model" or "layer"'):
        gs.prune.SparseGPT(target="dense")
