import copy
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.prune.driver import Job
from tests.support import is_sparse

METHODS = ["magnitude", "wanda", "sparsegpt", "obs", gs.prune.OBS("hessian")]


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4))


def batches(count=4, size=32):
    mix = torch.randn(16, 16)
    return [torch.randn(size, 16) @ mix for _ in range(count)]


def distance(model, dense, data):
    with torch.no_grad():
        return float(sum((model(x) - dense(x)).square().sum() for x in data))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("how", ["2:4", "4:2:8", "60%", "60% per row", "fan-in 50%", "block 2x2 50%", "1:4:g2"])
def test_every_method_with_every_pattern(method, how):
    model = mlp()
    report = gs.prune.oneshot(model, how, batches(), method=method)
    for row in report.layers:
        weight = model.get_parameter(row.name)
        assert is_sparse(weight) and weight.format == gs.Masked()
        assert weight.sparsity == pytest.approx(row.sparsity) and 0 < row.kept_energy < 1 and row.error > 0
        mask = weight.mask()
        if how != "1:4:g2":
            assert torch.equal(gs.patterns.as_pattern(how).select(mask.float()), mask)
        assert not row.notes
    assert model(torch.randn(3, 16)).isfinite().all()


@pytest.mark.parametrize("how", ["2:4", "70%"])
def test_better_methods_are_better(how):
    dense, data = mlp(), batches(8, 64)
    found = []
    for method in ("magnitude", "wanda", "sparsegpt", gs.prune.OBS("hessian")):
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, how, data, method=method)
        found.append(distance(model, dense, data))
    assert found[0] > found[1] > found[2] and found[3] < 1.15 * found[2]


def test_refine_helps_every_method():
    dense, data = mlp(), batches()
    for method in METHODS:
        errors = []
        for steps in (0, 10):
            report = gs.prune.oneshot(copy.deepcopy(dense), "2:4", data, method=method, refine=steps, where="0")
            errors.append(report.error)
        assert errors[1] < errors[0]


def test_the_error_is_the_real_one():
    dense, data = nn.Linear(16, 8, bias=False), batches()
    model = copy.deepcopy(dense)
    report = gs.prune.oneshot(model, "2:4", data, method="sparsegpt")
    whole = float(sum(dense(x).detach().square().sum() for x in data))
    assert report.error == pytest.approx(distance(model, dense, data) / whole, rel=1e-4)


def test_what_was_not_asked_for_is_untouched():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Conv2d(8, 8, 3), nn.Flatten()
    )
    model.append(nn.Linear(8 * 16, 5)).train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    data, random = [torch.randn(4, 3, 8, 8)], torch.get_rng_state()
    report = gs.prune.oneshot(model, {"4": "50%", "*": None}, data, method="sparsegpt")
    assert [row.name for row in report.layers] == ["4.weight"]
    for name, value in model.state_dict().items():
        if name != "4.weight":
            assert torch.equal(value, before[name]) and value.dtype == before[name].dtype
    assert [m.training for m in model] == [True, False, True, True, True, True, True]
    assert torch.equal(random, torch.get_rng_state())


def test_parameters_keep_their_identity_and_train_on():
    model = mlp()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.01)
    gs.prune.oneshot(model, "2:4", batches(), method="obs")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    model(torch.randn(3, 16)).sum().backward()
    optimizer.step()
    assert model[0].weight.sparsity == 0.5


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
    assert not any(row.notes for row in report.layers) and report.sparsity == pytest.approx(0.5)
    if kind == "gpt2":  # Conv1D holds [inputs, outputs]: the groups of 4 run along the inputs
        mask = model.transformer.h[0].mlp.c_fc.weight.mask()
        assert (mask.view(8, 4, -1).sum(1) == 2).all()
        assert not is_sparse(model.lm_head.weight)
    with torch.no_grad():
        assert model(ids[0]).logits.isfinite().all()


def test_blocks_of_a_language_model_see_pruned_inputs():
    model = causal("llama")
    data = [{"input_ids": torch.randint(0, 64, (2, 12))}]
    dense = copy.deepcopy(model)
    gs.prune.oneshot(model, "2:4", data, method="sparsegpt")
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
    again = gs.prune.oneshot(only_head, "2:4", data, method="sparsegpt", where="lm_head")
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
        assert len(report.layers) == 13 and report.sparsity == pytest.approx(0.75)


def test_torch_s_own_transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    report = gs.prune.oneshot(model, "2:4", [torch.randn(2, 5, 16)], method="sparsegpt")
    names = [row.name for row in report.layers]
    assert "layers.0.self_attn.in_proj_weight" in names and "layers.1.self_attn.out_proj.weight" in names
    assert not any(row.notes for row in report.layers)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_layer_that_nothing_reaches_is_pruned_by_magnitude_and_says_so():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            return self.used(x)

    model = Unused()
    report = gs.prune.oneshot(model, "2:4", batches(), method="sparsegpt")
    assert "no calibration" in report.layers[1].notes[0] and not report.layers[0].notes


# -- stop and go on


def test_resume_gives_the_same_bits(tmp_path, monkeypatch):
    dense, data = mlp(), batches()
    for method in ("sparsegpt", "obs"):
        whole = copy.deepcopy(dense)
        gs.prune.oneshot(whole, "2:4", data, method=method)
        folder, model, done = tmp_path / method, copy.deepcopy(dense), []
        real = Job._layer

        def interrupted(self, layer, gram, real=real, done=done):
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(layer.name)
            return real(self, layer, gram)

        monkeypatch.setattr(Job, "_layer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gs.prune.oneshot(model, "2:4", data, method=method, checkpoint=folder)
        monkeypatch.setattr(Job, "_layer", real)
        # the interrupted model itself, and a fresh one: both go on
        for again in (model, copy.deepcopy(dense)):
            copied = tmp_path / f"{method}-{id(again)}"
            copied.mkdir()
            for file in folder.iterdir():
                (copied / file.name).write_bytes(file.read_bytes())
            report = gs.prune.oneshot(again, "2:4", data, method=method, checkpoint=copied)
            assert len(report.layers) == 3
            for name, want in whole.named_parameters():
                have = again.get_parameter(name)
                dense_of = lambda t: t.detach().to_dense() if isinstance(t, gs.SparseTensor) else t
                if method == "sparsegpt":
                    assert torch.equal(dense_of(have), dense_of(want))
                else:  # gradients of what is left are taken at the half-pruned model
                    assert have.shape == want.shape


def test_resume_after_kill(tmp_path):
    """A process that is killed in the middle leaves a folder from which another one goes on."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, time, torch, gossamer as gs\n"
        "from gossamer.prune import driver\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])\n"
        "data = [torch.randn(32, 16)]\n"
        "if sys.argv[1] == 'slow':\n"
        "    real = driver.Job._layer\n"
        "    driver.Job._layer = lambda *a: (time.sleep(0.3), real(*a))[1]\n"
        "gs.prune.oneshot(model, '2:4', data, checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)\n"
        "print(sum(float(layer.weight.detach().to_dense().double().abs().sum()) for layer in model))\n"
    )
    folder = tmp_path / "state"
    command = [sys.executable, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    victim = subprocess.Popen([*command, "slow", str(folder)], env=environment)
    page = folder / "progress.json"
    for _ in range(600):
        if page.exists() and len(json.loads(page.read_text())["done"]) >= 2:
            break
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert 2 <= len(json.loads(page.read_text())["done"]) < 6
    resumed = subprocess.run(
        [*command, "fast", str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    fresh = subprocess.run([*command, "fast"], env=environment, capture_output=True, text=True, check=True)
    assert resumed.stdout == fresh.stdout


def test_a_folder_of_another_run_is_refused(tmp_path):
    model, data = mlp(), batches()
    gs.prune.oneshot(copy.deepcopy(model), "2:4", data, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"another run.*method"):
        gs.prune.oneshot(copy.deepcopy(model), "2:4", data, method="wanda", checkpoint=tmp_path)
    (tmp_path / "progress.json").write_text(
        json.dumps({**json.loads((tmp_path / "progress.json").read_text()), "done": {}})
    )
    with pytest.raises(ValueError, match="another model"):
        gs.prune.oneshot(mlp(), "2:4", data, checkpoint=tmp_path)


# -- what can be wrong


def test_bad_calibration():
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    bad = torch.randn(4, 16)
    bad[1, 2] = float("nan")
    cases = [
        (None, ValueError, "needs calibration"),
        ([], ValueError, "empty"),
        ([torch.randn(0, 16)], ValueError, "empty"),
        (torch.randn(4, 16), TypeError, r"calibration=\[batch\]"),
        ([torch.randn(4, 16), bad], ValueError, "batch 1 holds NaN"),
        ([torch.randn(4, 16, device="meta")], ValueError, "lies on meta, the model on cpu"),
        ([torch.randn(4, 7)], RuntimeError, "shapes"),
    ]
    for calibration, error, words in cases:
        for method in ("sparsegpt", "obs"):
            with pytest.raises(error, match=words):
                gs.prune.oneshot(model, "2:4", calibration, method=method)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_nan_that_arises_inside_names_the_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[1].running_var.fill_(-1.0)
    with pytest.raises(ValueError, match=r"batch 0 brings NaN or infinity to '2.weight'"):
        gs.prune.oneshot(model, "2:4", [torch.randn(3, 4)])


def test_singular_hessians_are_damped_and_said():
    model, data = nn.Linear(64, 8), [torch.randn(2, 64)]
    for method in (gs.prune.SparseGPT(damp=0.0), gs.prune.OBS("hessian", damp=0.0)):
        report = gs.prune.oneshot(copy.deepcopy(model), "2:4", data, method=method)
        assert "singular" in report.layers[0].notes[0] and report.error is not None
    for method in METHODS:
        pruned = copy.deepcopy(model)
        report = gs.prune.oneshot(pruned, "2:4", [torch.zeros(4, 64)], method=method)
        assert pruned.weight.to_dense().isfinite().all()


def test_other_mistakes():
    model = mlp()
    cases = [
        ({"how": None}, "how=None"),
        ({"how": "2:4", "method": "magic"}, "unknown method 'magic'.*'sparsegpt'"),
        ({"how": {"nothing": "2:4"}}, "no sparse-able weight is called 'nothing'"),
        ({"how": {"*": None}}, "nothing is left"),
        ({"how": "50% per model", "method": "wanda", "calibration": batches()}, "per model"),
        ({"how": gs.FanIn(k=1000), "method": "magnitude"}, "k=1000"),
        ({"how": gs.Sparsifier("2:4", gs.Random(0)), "method": "magnitude"}, "the method decides"),
    ]
    for options, words in cases:
        with pytest.raises(ValueError, match=words):
            gs.prune.oneshot(model, **options)
    with pytest.raises(ValueError, match="no layer whose weight"):
        gs.prune.oneshot(nn.ReLU(), "2:4")
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"'0.weight' holds NaN"):
        gs.prune.oneshot(model, "2:4", method="magnitude")
    with pytest.raises(ValueError, match="scalar tensor"):
        gs.prune.oneshot(mlp(), "2:4", batches(), method="obs", loss=lambda out, batch: out)


def test_magnitude_needs_no_calibration_and_ranks_a_whole_model():
    model = mlp()
    report = gs.prune.oneshot(model, "50% per model", method="magnitude")
    assert report.sparsity == pytest.approx(0.5, abs=1e-3) and report.error is None
    assert len({row.sparsity for row in report.layers}) > 1


def test_gradients_in_several_passes_and_by_sample():
    dense, data = mlp(), batches(2, 8)
    want = copy.deepcopy(dense)
    gs.prune.oneshot(want, "2:4", data, method=gs.prune.OBS(per_sample=True))
    for method in (gs.prune.OBS(per_sample=True, memory=1), gs.prune.OBS(per_sample=True, memory=1e9)):
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, "2:4", data, method=method)
        first = lambda m: m[0].weight.to_dense()
        torch.testing.assert_close(first(model), first(want))


def test_tuples_dicts_forward_and_metric(tmp_path):
    data = [(x, torch.zeros(len(x))) for x in batches()]
    model = mlp()
    seen = []
    report = gs.prune.oneshot(
        model, "2:4", data, forward=lambda m, b: m(b[0]), metric=lambda m: seen.append(m.training) or len(seen)
    )
    assert (report.before, report.after, seen) == (1.0, 2.0, [True, True])
    report.save(tmp_path / "report.json")
    assert gs.prune.Report.from_dict(json.loads((tmp_path / "report.json").read_text())) == report
    assert "0.weight" in str(report) and "metric 1 -> 2" in str(report)
    gs.prune.oneshot(mlp(), "2:4", [{"input": x} for x in batches()])
    gs.prune.oneshot(mlp(), "2:4", [(x,) for x in batches()], format=gs.CSR())


def test_half_precision():
    model = mlp().bfloat16()
    report = gs.prune.oneshot(model, "2:4", [x.bfloat16() for x in batches()], method="sparsegpt")
    assert model[0].weight.dtype == torch.bfloat16 and report.sparsity == 0.5


def test_pruning_again_goes_further():
    model, data = mlp(), batches()
    gs.prune.oneshot(model, "2:4", data)
    gs.prune.oneshot(model, "1:4", data, device="cpu")
    assert model[0].weight.sparsity == 0.75


def test_progress_is_silent_without_a_terminal(capfd):
    gs.prune.oneshot(mlp(), "2:4", batches())
    assert capfd.readouterr() == ("", "")
    gs.prune.oneshot(mlp(), "2:4", batches(), show_progress=True)
    assert capfd.readouterr().out == ""


@pytest.mark.gpu
def test_a_model_on_the_cpu_computes_on_the_gpu():
    dense, data = mlp(), batches()
    for method in METHODS:
        here, there = copy.deepcopy(dense), copy.deepcopy(dense)
        gs.prune.oneshot(here, "2:4", data, method=method)
        gs.prune.oneshot(there, "2:4", data, method=method, device="cuda")
        assert there[0].weight.device.type == "cpu"
        assert distance(there, dense, data) < 1.1 * distance(here, dense, data) + 1e-3
