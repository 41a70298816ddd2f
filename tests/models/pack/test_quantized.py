"""Layouts of quantized layers: which are tried, and that the fastest is taken. Times are measured in tests/gpu."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Layout
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack import quantized as pack_quantized
from gossamer.models.pack import tune
from gossamer.models.pack.quantized import fastest_quantized, guessed, layouts
from gossamer.models.pack.tune import Timing


def layer(pattern: Any, how: Any = "fp8") -> Any:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(256, 128))
    return gs.quantize_(made if pattern is None else gs.sparsify_(made, pattern), how)[0]


@pytest.mark.parametrize(
    ("pattern", "how", "hopper", "ada"),
    [
        (None, "fp8", ["fp8 dense"], ["fp8 dense"]),
        ("60%", "fp8", ["fp8 bitmap", "fp8 dense"], ["fp8 dense"]),
        ("30%", "fp8", ["fp8 dense"], ["fp8 dense"]),
        ("2:4", "fp8", ["fp8 2:4", "fp8 dense"], ["fp8 weights 2:4", "fp8 dense"]),
        (gs.VNM("all", 2, 8), "fp8", ["fp8 all:2:8", "fp8 dense"], ["fp8 weights all:2:8", "fp8 dense"]),
        (gs.VNM(64, 2, 8), "fp8", ["fp8 weights 64:2:8", "fp8 dense"], ["fp8 weights 64:2:8", "fp8 dense"]),
        ("2:4", "int4", ["int4 weights 2:4"], ["int4 weights 2:4"]),
    ],
    ids=str,
)
def test_which_layouts(pattern: Any, how: Any, hopper: list[str], ada: list[str]) -> None:
    made = layer(pattern, how)
    assert [str(layout) for layout in layouts(made, (9, 0))] == hopper
    assert [str(layout) for layout in layouts(made, (8, 9))] == ada
    if how == "fp8":
        made.repack(Layout("fp8"))  # the pattern is found from the zeros
        assert [str(layout) for layout in layouts(made, (9, 0))] == hopper


def test_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(pack_gpu, "copies_of", lambda nbytes, x: 2)
    calls = []

    def replayed(rounds: Any, device: Any) -> Any:
        calls.append({key: [call() for call in each] for key, each in rounds.items()})
        many = len(calls[-1][None][0]) > 1
        return {None: 4.0, Layout("fp8", "all", 4): 3.0 if many else 1.0, Layout("fp8"): 1.0 if many else 2.0}

    monkeypatch.setattr(pack_quantized, "replayed", replayed)
    made, shapes = layer("2:4"), [(1, 256), (9, 256)]
    assert fastest_quantized(made, shapes, True, (10, 1)) == (Layout("fp8", "all", 4), 44.0, Timing((1.0, 3.0)))
    assert fastest_quantized(made, shapes, True, (1, 10)) == (
        Layout("fp8"),
        44.0,
        Timing((2.0, 1.0)),
    )  # measured before
    assert len(calls) == 2
    first, second = calls[1][Layout("fp8", "all", 4)]
    assert torch.equal(first, second)
    torch.testing.assert_close(first, calls[1][None][0], rtol=0.1, atol=0.1)


def test_a_model_of_the_costs() -> None:
    made = layer(gs.VNM("all", 2, 8))
    times = guessed(made, layouts(made, (9, 0)), [(1, 256), (4096, 256)])
    assert times[Layout("fp8", "all", 8)].seconds((1, 1)) <= times[Layout("fp8")].seconds((1, 1))


def test_bitmaps_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(pack_gpu, "copies_of", lambda nbytes, x: 2)
    bitmap, given = Layout("fp8", bitmap=True), []

    def replayed(rounds: Any, device: Any) -> Any:
        given.append({key: [call() for call in each] for key, each in rounds.items()})
        return {None: 4.0, bitmap: 1.0, Layout("fp8"): 2.0}

    monkeypatch.setattr(pack_quantized, "replayed", replayed)
    made = layer("70%")
    assert fastest_quantized(made, [(3, 256)], True, (1,))[0] == bitmap
    assert torch.equal(*given[0][bitmap])
    torch.testing.assert_close(given[0][bitmap][0], given[0][Layout("fp8")][0], rtol=2e-2, atol=2e-2)
    made.repack(bitmap)
    assert layouts(made, (9, 0)) == [bitmap, Layout("fp8")]
    for each in (made, layer("70%")):
        times = guessed(each, [bitmap, Layout("fp8")], [(1, 256), (65, 256)])
        assert times[bitmap].seconds((1, 0)) <= times[Layout("fp8")].seconds((1, 0))
        assert times[bitmap].seconds((0, 1)) > times[Layout("fp8")].seconds((0, 1))


def test_on_a_cpu_layers_are_left(capsys: Any) -> None:
    model = nn.Sequential(layer("2:4"))
    report = gs.pack_(model, torch.ones(1, 256))
    assert not report.layers and report.skipped[0][0] == "0" and "GPU" in report.skipped[0][1]
