"""Examples of calls: how they are read, what layers see of them, how long the model takes."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.models.pack import examples as pack_examples
from gossamer.models.pack import tune as pack_tune
from gossamer.models.pack.examples import Example, examples_of, shapes_of


class Two(nn.Module):
    """Calls its layer once for x, twice for y."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.layer(x)
        return x if y is None else self.layer(self.layer(y)).sum() + x


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(pack_tune, "SECONDS", 0.001)
    monkeypatch.setattr(pack_examples, "_SECONDS", 0.001)


def test_how_examples_are_read() -> None:
    x, y = torch.ones(2, 64), torch.ones(3, 64)
    assert examples_of(None) == ()
    for one in (x, (x, y), {"x": x}, UserDict(x=x)):
        (example,) = examples_of(one)
        assert example.inputs is one and example.weight == 1
    first, second, third = examples_of([x, ((x, y), 5), ({"x": x}, 0.5)])
    assert (first.inputs is x, second.inputs, second.weight, third.weight) == (True, (x, y), 5, 0.5)
    assert examples_of([(x, True)])[0].inputs == (x, True)  # an argument of the model
    with pytest.raises(ValueError, match="empty list"):
        examples_of([])
    with pytest.raises(TypeError, match="write a tuple"):
        examples_of([[x, y]])
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a positive number"):
            examples_of([(x, weight)])


def test_what_layers_see() -> None:
    model = Two()
    x, y = torch.ones(2, 5, 64), torch.ones(3, 64)
    seen = shapes_of(model, examples_of([x, ((x, y), 4), ({"x": y}, 0.5)]), {"layer": [model.layer]})
    assert seen == {"layer": {(10, 64): 5.0, (3, 64): 8.5}}
    assert not model.layer._forward_pre_hooks


def test_what_is_no_tensor_is_left_to_the_layer() -> None:
    with pytest.raises(TypeError, match="must be Tensor, not str"):
        gs.pack_(gs.sparsify_(nn.Sequential(nn.Linear(8, 8)), "50%"), "x")


def test_objects_that_a_call_changes_are_copied() -> None:
    class Grows(nn.Module):
        def forward(self, x: Tensor, cache: Any) -> Tensor:
            cache.append(x)
            assert len(cache) == 1
            return x

    cache: list[Any] = []
    example = Example((torch.ones(1), {"a": object()}))
    assert example.fresh() is not example and Example(torch.ones(1)).fresh().inputs.shape == (1,)
    pack_examples.model_seconds(Grows(), Example({"x": torch.ones(1), "cache": _Held(cache)}))
    assert not cache


class _Held:
    """No container that torch's trees look into."""

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def append(self, x: Any) -> None:
        self.held.append(x)

    def __len__(self) -> int:
        return len(self.held)


def test_pack_takes_the_format_that_is_best_over_all(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def timed(
        x: Tensor, weights: Any, call: Any, between: int
    ) -> Any:  # packed wins by 8 us for one token, loses 100 for 128
        dense, packed = {1: (10e-6, 2e-6), 128: (100e-6, 200e-6)}[x.shape[0]]
        return {f: dense if isinstance(f, gs.Dense) else packed for f in weights}

    monkeypatch.setattr(pack_tune, "_interleaved", timed)
    one, many = torch.randn(1, 256), torch.randn(128, 256)
    for given, format in (
        (one, "PackedCSR()"),
        ([one, many], "Masked()"),
        ([(one, 12), many], "Masked()"),
        ([(one, 14), many], "PackedCSR()"),
    ):
        (row,) = gs.pack_(gs.sparsify_(nn.Linear(256, 512), "80%"), given).layers
        assert row.format == format
    assert row.tokens == (1, 128) and row.dense_us == pytest.approx(240) and row.us == pytest.approx(228)
    assert "128 x 256" in capsys.readouterr().out


def test_the_model_is_measured_before_and_after() -> None:
    model = gs.sparsify_(Two(), "90%")
    report = gs.pack_(model, [(torch.ones(2, 64), 3), {"x": torch.ones(2, 64), "y": torch.ones(1, 64)}])
    assert [(e.text, e.weight) for e in report.examples] == [("2 x 64", 3), ("2 x 64, 1 x 64", 1.0)]
    assert all(e.before_us > 0 and e.gain == e.before_us / e.us for e in report.examples)
    assert "the model" in str(report)
    assert gs.pack_(model, torch.ones(2, 64), tune=False).examples == () == gs.pack_(model).examples
