"""What pack_ prints."""

import torch
from torch import nn

import gossamer as gs
from gossamer.models.pack.report import PackReport


def test_weights_left_for_one_reason_share_a_line():
    report = PackReport(
        (), (("a", "too odd"), ("b", "too small"), ("c", "too odd"), ("d", "too odd"), ("e", "too odd"))
    )
    assert report.left == ("not packed: a, c, d and 1 more; too odd", "not packed: b; too small")


def test_share_and_sparsity_are_the_models(capsys):
    net = gs.sparsify_(nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)), {"0.weight": "75%"})
    report = gs.pack_(net, tune=False)
    assert (report.parameters, report.sparsity) == (512, 0.375)
    assert (
        report.taken
        == "1 sparse weight, 50.0 % of all parameters; dense: 50.0 % not sparse; the model is 37.5 % sparse"
    )
    assert report.taken in " ".join(capsys.readouterr().out.split())


def test_nothing_to_pack(capsys):
    gs.pack_(nn.Linear(4, 4))
    assert capsys.readouterr().out.startswith(
        "no sparse layer to pack: 0 sparse weights, 0.0 % of all parameters; dense: "
    )


def test_quiet(capsys):
    gs.pack_(gs.sparsify_(nn.Linear(16, 16), "75%"), tune=False, quiet=True)
    assert capsys.readouterr().out == ""


def test_zeros_in_a_weight_that_cannot_be_packed_are_said():
    layer = nn.Bilinear(8, 8, 8)
    with torch.no_grad():
        layer.weight[:6] = 0
    report = gs.pack_(nn.Sequential(layer), quiet=True)
    assert [name for name, _ in report.skipped] == ["0.weight"]
    assert "Bilinear" in report.skipped[0][1]


def test_neurons_without_effect_are_said():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    report = gs.pack_(gs.sparsify_(model, "all:2:8"), torch.randn(4, 64), tune=False, quiet=True)
    assert report.without_effect == 64 and "64 neurons have no effect" in str(report)
    gs.nn.shrink_(gs.densify_(model))
    report = gs.pack_(gs.sparsify_(model, "50%"), tune=False, quiet=True)
    assert report.without_effect == 0 and "no effect" not in str(report)
