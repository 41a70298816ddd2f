"""Recovery: one call prunes a trained model and trains it back, resumes exactly, and says what it did."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.support import is_sparse

X = torch.randn(12, 16, 64, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 8))


def distance(model, dense):
    with torch.no_grad():
        return float(gs.prune.distill_logits(model(X.flatten(0, 1)), dense(X.flatten(0, 1))))


@pytest.mark.parametrize(("how", "sparsity"), [("80%", 0.8), ("2:4", 0.5), (gs.VNM("all", 2, 8), 0.75), (0.6, 0.6)])
def test_better_than_pruning_alone(how, sparsity):
    dense, model, pruned = network(), network(), network()
    gs.prune.oneshot(pruned, "60%" if how == 0.6 else how, method="magnitude")
    report = gs.prune.recover(model, how, X, steps=120, lr=3e-3)
    assert report.sparsity_of_taken == pytest.approx(sparsity, abs=0.01)
    assert distance(model, dense) < 0.6 * distance(pruned, dense)
    assert is_sparse(model[0].weight) and is_sparse(model[2].weight)
    mask = model[0].weight.mask()
    if isinstance(how, gs.VNM):
        assert torch.equal(how.select(mask.float()), mask)


def test_report():
    model, seen = network(), []
    report = gs.prune.recover(model, "75%", X, steps=30, metric=lambda m: seen.append(m) or float(len(seen)), skip="2")
    assert (report.before, report.after) == (1.0, 2.0) and [row.name for row in report.layers] == ["0.weight"]
    row = report.layers[0]
    assert row.shape == (48, 64) and row.sparsity == 0.75 and 0.4 < row.kept_energy < 1
    assert len(report.history) == 20 and report.history[-1]["step"] == 30
    assert {left.name for left in report.left} == {"0.bias", "2.weight", "2.bias"}
    assert "recovery" in str(report)


def test_the_teacher_is_left_as_it_is():
    dense = network()
    before = copy.deepcopy(dense.state_dict())
    gs.prune.recover(model := network(), "80%", X, steps=10, teacher=gs.prune.Distill(dense, temperature=1.0))
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())
    assert not torch.equal(model[0].bias, dense[0].bias)


def test_autocast_does_not_keep_the_first_weights():
    """The cache of autocast lives as long as its outermost context, which here is all of the training."""
    model = network()
    with torch.autocast("cpu", torch.bfloat16):
        report = gs.prune.recover(model, "90%", X, steps=20, lr=1e-2)
    assert min(part["loss"] for part in report.history[2:]) > 0


def test_an_own_loss_is_one_half():
    called = []

    def loss(output, batch):
        called.append(batch.shape)
        return output.square().mean()

    gs.prune.recover(model := network(), "50%", X, steps=80, lr=1e-2, loss=loss)
    assert len(called) == 80 and set(called) == {(16, 64)}
    with torch.no_grad():
        assert model(X[0]).square().mean() < 0.5 * network()(X[0]).square().mean()


class Batches:
    """Keyword batches, counted."""

    def __init__(self, stop=None):
        self.given, self.stop = 0, stop

    def __iter__(self):
        for x in X:
            if self.given == self.stop:
                raise KeyboardInterrupt
            self.given += 1
            yield {"input": x}


@pytest.mark.parametrize("stop", [1, 7, 19])
def test_a_stopped_run_continues_exactly(tmp_path, stop):
    whole, part = network(), network()
    gs.prune.recover(whole, "80%", Batches(), steps=20, lr=1e-2)
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        gs.prune.recover(part, "80%", Batches(stop), steps=20, lr=1e-2, checkpoint=path, save_every=3)
    assert path.exists() == (stop >= 3)
    again = network()
    report = gs.prune.recover(again, "80%", Batches(), steps=20, lr=1e-2, checkpoint=path, save_every=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert len(report.history) == 20
    before = Batches()
    done = gs.prune.recover(network(), "80%", before, steps=20, lr=1e-2, checkpoint=path)
    assert done.sparsity_of_taken == report.sparsity_of_taken


def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    dense = copy.deepcopy(model)
    ids = torch.randint(40, (4, 8), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    teacher = gs.prune.Distill(dense, attention=0.1)
    report = gs.prune.recover(model, "70%", [batch], steps=30, lr=3e-3, teacher=teacher)
    assert report.history[-1]["loss"] < 0.7 * max(part["loss"] for part in report.history)
    assert not model.config.output_hidden_states and not dense.config.output_attentions


def test_errors(tmp_path):
    path = tmp_path / "run.pt"
    gs.prune.recover(network(), "80%", X, steps=2, checkpoint=path)
    with pytest.raises(ValueError, match=r"belongs to another run: how='80%' there, '2:4' now"):
        gs.prune.recover(network(), "2:4", X, steps=2, checkpoint=path)
    with pytest.raises(ValueError, match="save_every=0 must be a number of steps"):
        gs.prune.recover(network(), "80%", X, steps=2, save_every=0)
    with pytest.raises(ValueError, match="no batches left to train on"):
        gs.prune.recover(network(), "80%", (x for x in X[:3]), steps=5)
    with pytest.raises(ValueError, match="without a teacher, give a loss"):
        gs.train.Recipe(network(), "80%", steps=2).loss(None, X[0])
