"""What is told of masks over the updates."""

from types import SimpleNamespace

import pytest
import torch

from gossamer.train.history import CURVES, History, count_bits, to_bits


def layer(mask):
    return SimpleNamespace(name="fc", mask=mask, size=mask.numel(), outputs=len(mask))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 1001])
def test_bits_count_what_is_true(size):
    mask = torch.rand(size, generator=torch.Generator().manual_seed(size)) < 0.4
    bits = to_bits(mask)
    assert len(bits) == -(-size // 8) and count_bits(bits) == int(mask.sum())
    for place in range(size):
        assert bool(bits[place // 8] >> place % 8 & 1) == bool(mask[place])


def test_by_hand():
    first = torch.tensor([[True, True, False, False], [True, False, False, False]])
    then = torch.tensor([[True, False, True, True], [False, False, False, False]])
    of = layer(first)
    history = History([of])
    assert history.figures([of])["layers"]["fc"]["explored"] == 3 / 8
    history.record(5, [of], [then])
    of.mask = then
    (row,) = history.rows
    assert row == {"step": 5, "layer": "fc", "kept": 3, "churn": 2 / 3, "active": 1, "explored": 5 / 8}
    figures = history.figures([of])
    assert figures == {
        "updates": 1, "kept": 3, "density": 3 / 8, "layers": {"fc": {
            "density": 3 / 8, "churn": 2 / 3, "neurons": 2, "ablated": 1, "fan_in": 3, "explored": 5 / 8,
        }},
    }  # fmt: skip
    curves = history.curves([of])
    assert set(curves) == set(CURVES) and curves["ablated"]["fc"] == {"step": [5], "value": [0.5]}


def test_a_layer_without_a_new_mask_is_not_recorded():
    of = layer(torch.ones(2, 2, dtype=torch.bool))
    history = History([of])
    history.record(1, [of], [None])
    assert history.rows == [] and history.figures([of])["updates"] == 0


def test_state_is_a_copy():
    of = layer(torch.eye(3).bool())
    history, other = History([of]), History([of])
    state = history.state_dict()
    history.record(1, [of], [torch.ones(3, 3, dtype=torch.bool)])
    assert count_bits(state["seen"]["fc"]) == 3 and state["rows"] == []
    other.load_state_dict(history.state_dict())
    assert other.explored(of) == 1.0 and other.rows == history.rows and other.rows is not history.rows


def test_tensorboard_gets_every_curve():
    seen = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: seen.update({name: (value, step)}))
    of = layer(torch.eye(2).bool())
    history = History([of])
    history.write(writer, {**history.figures([of]), "step": 7})
    assert seen["sparsity/density"] == (0.5, 7) and len(seen) == 1 + len(CURVES)
