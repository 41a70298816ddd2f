"""gs.report: what it finds, what it refuses, and what it leaves as it was."""

import json

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.io.write import state_of


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def test_layers_say_pattern_format_bytes_times_kernel_and_why(tmp_path):
    model = gs.sparsify_(network(), {"0": "2:4", "2": None}, format=gs.CSR())
    before = [p.detach().to_dense().clone() for p in model.parameters()]
    found = gs.report(model, tmp_path / "page.html", tokens=[1, 8], accuracy=0.9)
    sparse, dense = found.layers
    assert (sparse.name, sparse.pattern, sparse.format, sparse.sparsity) == ("0.weight", "2:4", "CSR()", 0.5)
    assert (sparse.bytes, sparse.dense_bytes) == (model[0].weight.nbytes, 64 * 128 * 4)
    assert sparse.kernel == gs.explain(nn.functional.linear, torch.ones(1, 64), model[0].weight).function.removeprefix(
        "gossamer."
    )
    assert "native" in sparse.why
    assert [t.case for t in sparse.times] == ["1 token", "8 tokens"]
    assert all(t.us > 0 and t.dense_us > 0 for t in sparse.times)
    assert (dense.pattern, dense.kernel, dense.times[0].gain) == ("dense", "torch", 1.0)
    assert found.points == (("Sequential, by gossamer", pytest.approx(0.5 * 8192 / (8192 + 1280)), 0.9),)
    page = (tmp_path / "page.html").read_text()
    for text in ("0.weight", "128 x 64", "2:4", "CSR", sparse.kernel):
        assert text in page
    assert all(torch.equal(a, p.to_dense()) for a, p in zip(before, model.parameters(), strict=True))
    assert model[0].weight.format == gs.CSR()


def test_to_dict_is_plain():
    found = gs.report(gs.sparsify_(network(), "90%"), None, tokens=[1])
    again = json.loads(json.dumps(found.to_dict()))
    assert [x["name"] for x in again["layers"]] == ["0.weight", "2.weight"]
    assert again["layers"][0]["times"][0]["gain"] > 0
    assert (again["ceilings"] is None) == (native.ceilings(torch.get_num_threads()) is None)


def test_convolutions_are_measured_with_an_example():
    model = gs.sparsify_(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)), "75%")
    assert not gs.report(model, None, tokens=[1]).layers[0].times
    found = gs.report(model, None, tokens=[1], example_inputs=torch.randn(2, 4, 8, 8))
    assert [(t.case, t.tokens) for t in found.layers[0].times] == [("the example", 2 * 36)]
    assert [t.case for t in found.layers[1].times] == ["1 token", "the example"]


def test_training_churn_and_curves_come_from_the_method(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, sparsity=0.8, every=2, until=100)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        method.step()
    found = gs.report(model, tmp_path / "page.html", measure=False, training=method, curves={"loss": [3.0, 2.0, 1.5]})
    assert [step for step, _ in found.curves["churn"]["0.weight"]] == [2, 4, 6]
    assert found.curves["loss"]["loss"] == [(0.0, 3.0), (1.0, 2.0), (2.0, 1.5)]
    assert [(row["layer"], row["method"]) for row in found.training] == [("0.weight", "RigL"), ("2.weight", "RigL")]
    assert "Churn" in (tmp_path / "page.html").read_text()
    assert gs.report(model, None, measure=False, training=method.log()).training == found.training


def test_points_of_a_pruning_run():
    model, scores = network(), iter([0.9, 0.5, 0.6, 0.7, 0.8])
    run = gs.prune.gradual(model, "75%", lambda m, d: None, steps=2, stages=2, metric=lambda m: next(scores))
    found = gs.report(model, None, measure=False, pruning=run)
    assert [(s, a) for _, s, a in found.points] == [(0.0, 0.9), (run.history[0]["sparsity"], 0.6), (run.sparsity, 0.8)]


def test_several_models_and_tensors_by_name():
    models = {"dense": network(), "sparse": gs.sparsify_(network(), "90%")}
    found = gs.report(models, None, measure=False, accuracy={"sparse": 0.8})
    assert found.models == ("dense", "sparse")
    assert found.points[0][0] == "sparse"
    found = gs.report(state_of(models["sparse"]), None, measure=False)
    assert [x.name for x in found.layers] == ["0.weight", "2.weight"]  # biases are no layers


def test_int8_layers_are_measured_as_they_run():
    model = gs.quantize_(gs.sparsify_(network(), {"0": "90%", "2": None}, format=gs.formats.PackedCSR()))
    found = gs.report(model, None, tokens=[1])
    eight = found.layers[0]
    assert (eight.name, eight.format, eight.kernel) == ("0.weight", "PackedCSR() int8", "nn.Int8Linear")
    assert eight.dense_bytes == 64 * 128 * 4
    assert eight.times[0].us > 0
    found = gs.report(state_of(model), None, tokens=[1])
    assert not found.layers[0].times  # a file doesn't tell how its int8 values are meant


def test_zeros_of_another_tool_are_seen():
    model = network()
    with torch.no_grad():
        model[0].weight.mul_(gs.NM(1, 4).select(torch.rand(128, 64)))
    found = gs.report(model, None, measure=False)
    assert (found.layers[0].pattern, found.layers[0].format) == ("1:4", "Dense()")


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        gs.report(network(), None, tokens=[0])
    with pytest.raises(ValueError, match="nothing to report on"):
        gs.report(nn.ReLU(), None)
    with pytest.raises(ValueError, match="the models are"):
        gs.report({"a": network()}, None, measure=False, accuracy={"b": 1.0})
    with pytest.raises(TypeError, match="give a module"):
        gs.report([network()], None)
    with pytest.raises(TypeError, match="modules only"):
        gs.report({"a": network(), "b": torch.ones(2)}, None)
    with pytest.raises(FileNotFoundError, match="no folder"):
        gs.report(network(), tmp_path / "no" / "page.html", measure=False)
    assert not list(tmp_path.iterdir())


def test_a_page_that_is_there_stays_whole_when_writing_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gs.report(network(), page, measure=False)
    assert page.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_layers_in_eight_bits(tmp_path):
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), "2:4")
    made = gs.report(gs.quantize_(model, "int8"), tmp_path / "r.html", tokens=(1,), measure=False)
    assert [(row.name, row.pattern, row.sparsity, row.kernel) for row in made.layers] == [
        ("0.weight", "2:4", 0.5, "nn.DynamicInt8Linear"),
        ("2.weight", "2:4", 0.5, "nn.DynamicInt8Linear"),
    ]
    assert all("int8" in row.format and row.bytes < row.dense_bytes / 2 for row in made.layers)
