import copy
import json

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.prune.networks import batches, mlp


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
        ([torch.randn(4, 16), bad], ValueError, "batch 1 contains NaN"),
        ([torch.randn(4, 16, device="meta")], ValueError, "is on meta, the model on cpu"),
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


def test_gradients_in_several_passes_and_by_sample():
    dense, data = mlp(), batches(2, 8)
    want = copy.deepcopy(dense)
    gs.prune.oneshot(want, "2:4", data, method=gs.prune.OBS(per_sample=True))
    largest = 8 * 16 * 32 * 24  # of the Fisher matrices of the three layers: passes of their own
    for memory in (largest, 1e9):
        model = copy.deepcopy(dense)
        gs.prune.oneshot(model, "2:4", data, method=gs.prune.OBS(per_sample=True), memory=memory)
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
