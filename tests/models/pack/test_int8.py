"""Layouts of layers in eight bits: which are tried, which is taken, what is kept. No time is asserted."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels.int8.layout import Layout
from gossamer.models.pack import int8, truth, tune
from gossamer.models.pack.int8 import fastest_layout, int8_layers


def layer(pattern="90%", rows=64, cols=64):
    torch.manual_seed(0)
    return gs.quantize_(gs.sparsify_(nn.Linear(cols, rows), pattern), "int8")


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")


def test_the_layers_of_a_model_by_name():
    model = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), "90%"), "int8")
    assert list(int8_layers(model)) == ["0", "2"]
    assert int8_layers(nn.Linear(4, 4)) == {}


def test_guesses_by_hand():
    layout, dense, timing = fastest_layout(layer(), [(4, 64), (2, 8, 64)], tuned=False, counts=(1, 2))
    assert layout == Layout("lookup") and len(timing.times) == 2
    wanted = tune.dense_seconds(64, 64, 4) + 2 * tune.dense_seconds(64, 64, 16)
    assert dense == pytest.approx(wanted) and timing.times[0] <= timing.times[1]
    assert str(fastest_layout(layer("10%"), [(4, 64)], tuned=False, counts=(1,))[0]) == "int8 dense"


def measured(monkeypatch, own, seconds, clear=True):
    """The fastest layout, where the clock says these times; and how often it was asked."""
    asked = []

    def steady(once, first, bound):
        asked.append(bound)
        return {layout: seconds(layout) for layout in once.args[0]}, clear

    monkeypatch.setattr(truth, "steady", steady)
    return *fastest_layout(own, [(4, 64)], tuned=True, counts=(1,)), asked


def test_the_fastest_by_the_clock_is_taken_and_kept(monkeypatch):
    def seconds(layout):
        return 9.0 if layout is None else 1.0 if layout.kind == "dense" else 2.0

    own = layer()
    layout, dense, timing, asked = measured(monkeypatch, own, seconds)
    assert layout == Layout("dense") and dense == 9.0 and timing.times == (1.0,) and timing.clear
    assert asked == [truth.most(float((own.weight != 0).float().mean()), ratio=4)]
    again, dense, _, asked = measured(monkeypatch, own, lambda layout: 0.0)
    assert again == Layout("dense") and dense == 9.0 and not asked  # from the file


def test_dense_float32_is_compared_with_but_never_taken(monkeypatch):
    layout, dense, timing, _ = measured(monkeypatch, layer(), lambda layout: 1.0 if layout is None else 5.0)
    assert layout is not None and dense == 1.0 and timing.times == (5.0,)


def test_what_cannot_be_believed_is_not_kept(monkeypatch):
    timing = measured(monkeypatch, layer(), lambda layout: 1.0, clear=False)[2]
    assert not timing.clear and tune.load_known() == {}


def test_every_layout_multiplies_the_same(monkeypatch):
    own, seen = layer("block 1x4 75%"), {}

    def steady(once, first, bound):
        seen.update({layout: function() for layout, function in once.args[0].items()})
        return dict.fromkeys(seen, 1.0), True

    monkeypatch.setattr(truth, "steady", steady)
    fastest_layout(own, [(3, 64)], tuned=True, counts=(1,))
    dense = seen.pop(None)
    assert len(seen) >= 3 and int8._CYCLES.keys() >= {layout.kind for layout in seen}
    first = next(iter(seen.values()))
    assert all(torch.equal(result, first) for result in seen.values())
    assert (first - dense).norm() < 0.02 * dense.norm()  # inputs are rounded to eight bits: 1 / 127 of their largest
