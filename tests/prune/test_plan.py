import copy
import json

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.prune.networks import batches, mlp


def test_other_mistakes():
    model = mlp()
    cases = [
        ({"how": None}, "how=None"),
        ({"how": "2:4", "method": "magic"}, "unknown method 'magic'.*'sparsegpt'"),
        ({"how": {"nothing": "2:4"}}, "no weight that can be sparse is called 'nothing'"),
        ({"how": {"*": None}}, "nothing is left"),
        ({"how": "50% per model", "method": "wanda", "calibration": batches()}, "per model"),
        ({"how": gs.FanIn(k=1000), "method": "magnitude"}, "k=1000"),
        ({"how": gs.Sparsifier("2:4", gs.Random(0)), "method": "magnitude"}, "decides how values are scored"),
        ({"how": {"0": gs.Sparsifier("2:4"), "*": gs.Sparsifier("2:4", gs.Random(0))}}, "one score per call"),
        ({"how": "2:4", "method": gs.Gradient(), "calibration": batches()}, "needs the gradient of a loss"),
        ({"how": "2:4", "method": gs.prune.SparseGPT(bits=8), "calibration": batches(), "refine": 3}, "bits="),
        ({"how": "2:4", "method": "obs", "calibration": batches(), "memory": 1e4}, "takes 0.0 GB for '0.weight'"),
    ]
    for options, words in cases:
        with pytest.raises(ValueError, match=words):
            gs.prune.oneshot(model, **options)
    with pytest.raises(ValueError, match="no layer whose weight"):
        gs.prune.oneshot(nn.ReLU(), "2:4")
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"'0.weight' contains NaN"):
        gs.prune.oneshot(model, "2:4", method="magnitude")
    with pytest.raises(ValueError, match="scalar tensor"):
        gs.prune.oneshot(mlp(), "2:4", batches(), method="obs", loss=lambda out, batch: out)


def test_the_report_is_about_the_model():
    model = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 16, bias=False), nn.LayerNorm(16))
    report = gs.prune.oneshot(model, "50%", method="magnitude")
    assert report.sparsity == 128 / (1600 + 256 + 32) and report.sparsity_of_taken == 0.5
    assert report.taken == "1 sparse weight, 13.6 % of all parameters; dense: 84.7 % embeddings, 1.7 % vectors"
    assert report.taken in str(report)
    again = gs.prune.Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again == report and again.taken == report.taken


def test_depthwise_and_embeddings_are_taken_when_they_are_named():
    model = nn.ModuleDict(
        {"embed": nn.Embedding(8, 16), "depth": nn.Conv1d(16, 16, 3, groups=16), "fc": nn.Linear(16, 8)}
    )
    names = lambda **options: [
        row.name for row in gs.prune.oneshot(copy.deepcopy(model), method="magnitude", **options).layers
    ]
    assert names(how="50%") == ["fc.weight"]
    assert names(how="50%", where="depth") == ["depth.weight"]
    assert names(how={"embed": "50%", "*": "2:4"}) == ["embed.weight", "fc.weight"]
