import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.prune.networks import METHODS, batches, distance, mlp
from tests.support import is_sparse


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


def test_singular_hessians_are_damped_and_said():
    model, data = nn.Linear(64, 8), [torch.randn(2, 64)]
    for method in (gs.prune.SparseGPT(damp=0.0), gs.prune.OBS("hessian", damp=0.0)):
        report = gs.prune.oneshot(copy.deepcopy(model), "2:4", data, method=method)
        assert "singular" in report.layers[0].notes[0] and report.error is not None
    for method in METHODS:
        pruned = copy.deepcopy(model)
        report = gs.prune.oneshot(pruned, "2:4", [torch.zeros(4, 64)], method=method)
        assert pruned.weight.to_dense().isfinite().all()


def test_magnitude_needs_no_calibration_and_ranks_a_whole_model():
    model = mlp()
    report = gs.prune.oneshot(model, "50% per model", method="magnitude")
    assert report.sparsity_of_taken == pytest.approx(0.5, abs=1e-3) and report.error is None
    assert len({row.sparsity for row in report.layers}) > 1


def test_half_precision():
    model = mlp().bfloat16()
    report = gs.prune.oneshot(model, "2:4", [x.bfloat16() for x in batches()], method="sparsegpt")
    assert model[0].weight.dtype == torch.bfloat16 and report.sparsity_of_taken == 0.5


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
