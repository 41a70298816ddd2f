"""gs.report: whatever it is given, and what it refuses."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.io.write import state_of
from gossamer.report.make import _lines, _named, _pruned, _training, machine


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def test_curves_are_numbers_or_steps_with_numbers():
    assert _lines("loss", [3, 2.5]) == {"loss": [(0.0, 3.0), (1.0, 2.5)]}
    assert _lines("loss", {"a": [(10, 1), [20, 0]], 5: []}) == {"a": [(10.0, 1.0), (20.0, 0.0)], "5": []}


def test_one_thing_or_several_by_name():
    run = object()
    assert _named(None) == {} and _named(run) == {"": run} and _named({"a": run}) == {"a": run}
    assert _named({"layers": {}, "method": "RigL"}) == {"": {"layers": {}, "method": "RigL"}}  # a log


def test_points_of_pruning_by_hand():
    stages = ({"sparsity": 0.5, "trained": 0.8}, {"sparsity": 0.7}, {"sparsity": 0.9, "trained": 0.6})
    run = SimpleNamespace(method="Wanda", before=0.9, after=0.6, sparsity=0.9, history=stages)
    assert _pruned(run) == [("Wanda", 0.0, 0.9), ("Wanda", 0.5, 0.8), ("Wanda", 0.9, 0.6)]
    once = SimpleNamespace(method="Wanda", before=None, after=0.7, sparsity=0.5, history=())
    assert _pruned({"mine": once}) == [("mine", 0.5, 0.7)]
    assert _pruned(SimpleNamespace(method="x", before=None, after=None, sparsity=0.5, history=())) == []


def test_what_methods_have_logged_by_hand():
    log = {"method": "SET", "layers": {"fc": {"density": 0.1}}}
    rows = [{"layer": "fc", "step": 5, "churn": 0.3, "explored": 0.4}]
    series, table = _training((log, rows))
    assert series == {"churn": {"fc": [(5, 0.3)]}, "explored": {"fc": [(5, 0.4)]}}
    assert table == [{"layer": "fc", "method": "SET", "density": 0.1}]
    series, table = _training({"a": (log, rows), "b": log})
    assert list(series["churn"]) == ["a fc"] and [row["method"] for row in table] == ["a", "b"]


def test_the_machine_in_a_line():
    threads = torch.get_num_threads()
    said = machine()
    assert f"{threads} thread" in said and f"torch {torch.__version__}" in said
    assert ("no native kernels" in said) is not native.load()


def test_titles_and_no_measurement():
    found = gs.report(network(), None, measure=False, tokens=[1])
    assert found.title == "Sequential, by gossamer" and found.ceilings is None and found.tokens == ()
    assert gs.report({"a": network()}, None, measure=False).title == "gossamer report"
    assert gs.report(network(), None, measure=False, title="Mine").title == "Mine"


def test_accuracy_as_triples_stands_as_it_is():
    found = gs.report(network(), None, measure=False, accuracy=[("x", 0.5, 1)])
    assert found.points == (("x", 0.5, 1.0),)


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
