import copy
import dataclasses

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.prune.networks import batches, mlp


@pytest.mark.parametrize(
    "score", [gs.Magnitude(), gs.Wanda(), gs.Random(3), gs.Gradient(), gs.Movement(), gs.Fisher()], ids=str
)
@pytest.mark.parametrize("how", ["2:4", "4:2:8", "60%", "fan-in 50%", "block 1x4 50%"])
def test_every_score_with_every_pattern(score, how):
    model, loss = mlp(), lambda out, batch: out.square().sum()
    report = gs.prune.oneshot(model, how, batches(), method=score, loss=loss)
    assert report.method == type(score).__name__.lower() and not any(row.notes for row in report.layers)
    for row in report.layers:
        mask = model.get_parameter(row.name).mask()
        assert torch.equal(gs.patterns.as_pattern(how).select(mask.float()), mask)


def test_scores_by_name_by_sparsifier_and_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Small(gs.Score):
        """The opposite of magnitude."""

        def rate(self, weight, **_):
            return -weight.abs()

    dense, data = mlp(), batches()
    results = {}
    for name, options in {
        "name": {"how": "2:4", "method": "wanda"},
        "score": {"how": "2:4", "method": gs.Wanda()},
        "sparsifier": {"how": gs.Sparsifier("2:4", gs.Wanda())},
        "method": {"how": None, "method": gs.Sparsifier("2:4", gs.Wanda())},
        "small": {"how": "2:4", "method": Small()},
    }.items():
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, calibration=data, **options)
        results[name] = model[0].weight.mask()
    assert all(torch.equal(results[name], results["name"]) for name in ("score", "sparsifier", "method"))
    assert torch.equal(results["small"], ~gs.NM(2, 4).select(dense[0].weight.detach().abs()))


def test_random_scores_differ_from_layer_to_layer():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    gs.prune.oneshot(model, "50%", method="random")
    assert not torch.equal(model[0].weight.mask(), model[1].weight.mask())


def test_first_order_over_the_model():
    """SNIP: |w g| of the loss, ranked over all layers."""
    model, data = mlp(), batches()
    loss = lambda out, batch: out.square().sum()
    grads = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.dim() > 1}
    for x in data:
        found = torch.autograd.grad(loss(model(x), x), [model.get_parameter(n) for n in grads])
        for name, grad in zip(grads, found, strict=True):
            grads[name] += grad / len(data)
    scores = [(model.get_parameter(n) * g).abs() for n, g in grads.items()]
    want = gs.Unstructured(0.7, per="model").select_many(scores)
    gs.prune.oneshot(model, "70% per model", data, method=gs.Gradient(), loss=loss)
    assert all(torch.equal(model.get_parameter(n).mask(), mask) for n, mask in zip(grads, want, strict=True))
