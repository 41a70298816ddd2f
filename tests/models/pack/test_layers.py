"""Which layers pack_ takes, and what it says of the others."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import gossamer as gs
from gossamer import native
from gossamer.formats import PackedCSR, PackedNear, PackedTiles
from gossamer.models.pack import tune
from gossamer.models.pack.layers import by_tiles, call_of, candidates_of, packable, refused, tokens_of
from gossamer.models.weights import all_weights


def weight_of(layer, name="weight"):
    return all_weights(layer)[name]


TAKEN = [
    nn.Linear(8, 8),
    nn.Conv1d(4, 8, 3),
    nn.Conv2d(8, 8, 3, groups=2),
    nn.Conv3d(4, 8, 2),
    nn.ConvTranspose2d(4, 4, 3),
]


@pytest.mark.parametrize("layer", TAKEN, ids=lambda layer: type(layer).__name__)
def test_taken(layer):
    assert packable(weight_of(layer))
    assert refused(weight_of(layer)) is None


LEFT = {
    "depthwise": nn.Conv2d(4, 4, 3, groups=4),
    "depthwise convolutions": nn.ConvTranspose2d(4, 4, 3, groups=4),
    "circular": nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"),
    "float64": nn.Linear(4, 4).double(),
    "Bilinear": nn.Bilinear(3, 3, 3),
}


@pytest.mark.parametrize("words", LEFT)
def test_left_with_the_reason(words):
    assert words in refused(weight_of(LEFT[words]))


def test_a_parametrized_weight_says_what_to_do():
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    name = next(n for n in all_weights(layer) if n.endswith("original1"))
    assert "weight_norm" in refused(weight_of(layer, name))


CONVOLUTIONS = [
    (nn.Conv1d(4, 8, 3, stride=2), (2, 4, 9)),
    (nn.Conv2d(4, 8, 3, padding=1, groups=2), (2, 4, 5, 6)),
    (nn.Conv3d(4, 8, 2), (2, 4, 3, 4, 5)),
]
TRANSPOSED = [
    (nn.ConvTranspose1d(4, 8, 3, stride=2, output_padding=1), (2, 4, 9)),
    (nn.ConvTranspose2d(4, 8, 3, padding=1, groups=2), (1, 4, 5, 6)),
    (nn.ConvTranspose3d(4, 8, 2, stride=2, dilation=2), (2, 4, 3, 4, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda x: type(x).__name__)
def test_called_as_the_layer_is(layer, shape):
    x = torch.randn(shape)
    out = layer(x)
    torch.testing.assert_close(call_of(layer)(x, layer.weight), out)
    assert tokens_of(layer, shape) == out.numel() // out.shape[1]


@pytest.mark.parametrize(("layer", "shape"), TRANSPOSED, ids=lambda x: type(x).__name__)
def test_transposed_ones_are_called_as_the_layer_is(layer, shape):
    x = torch.randn(shape)
    torch.testing.assert_close(call_of(layer)(x, layer.weight), layer(x))
    assert tokens_of(layer, shape) == x.numel() // 4


def test_groups_have_one_candidate():
    layer = nn.Conv2d(8, 8, 3, groups=2)
    mask = gs.NM(2, 4).select(torch.rand(8, 4, 3, 3))
    assert candidates_of(layer, mask, layer.weight) == [PackedCSR()]


@pytest.mark.parametrize(("layer", "shape"), [*CONVOLUTIONS, *TRANSPOSED], ids=lambda x: type(x).__name__)
def test_packed_convolutions_compute_the_same(layer, shape, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(
        tune, "_interleaved", lambda x, weights, call, between: {f: 1.0 + (f == gs.Dense()) for f in weights}
    )
    net, x = gs.sparsify_(nn.Sequential(layer), "75%"), torch.randn(shape)
    expected = net(x).detach()
    report = gs.pack_(net, x, quiet=True)
    assert report.layers[0].format.startswith("Packed")
    with gs.fallback("error"):
        torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", ["amx", "avx512", "baseline"])
def test_tiles_are_for_linear_layers_in_bfloat16_by_fast_kernels(monkeypatch, isa):
    monkeypatch.setattr(native, "load", lambda: True)
    monkeypatch.setattr(native, "tiles_isa", lambda: isa)
    assert by_tiles(torch.bfloat16) == (isa != "baseline") and not by_tiles(torch.float32)
    mask = torch.rand(8, 36) < 0.5
    for layer, taken in ((nn.Linear(36, 8), True), (nn.Conv2d(4, 8, 3), False), (nn.MultiheadAttention(4, 1), True)):
        for dtype in (torch.bfloat16, torch.float32):
            found = candidates_of(layer, mask, mask.to(dtype))
            assert (PackedTiles() in found) == (taken and by_tiles(dtype))


@pytest.mark.skipif(not native.load() or native.tiles_isa() == "baseline", reason="no fast kernels of packed tiles")
@pytest.mark.parametrize("tune_it", [True, False])
def test_a_bfloat16_model_is_packed(monkeypatch, tmp_path, tune_it):
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(tune, "SECONDS", 0.001)
    model = gs.sparsify_(nn.Sequential(nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 40)).bfloat16(), "50%")
    x = torch.randn(3, 256).bfloat16()
    with torch.no_grad():
        before = model(x)
        report = gs.pack_(model, [x, torch.randn(70, 256).bfloat16()], tune=tune_it, quiet=True)
        torch.testing.assert_close(model(x), before, rtol=0.02, atol=0.02)
    assert [row.format for row in report.layers] == [str(model[i].weight.format) for i in (0, 2)]


@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
def test_half_of_a_weight_has_another_candidate_without_avx512(monkeypatch, isa):
    monkeypatch.setattr(native, "load", lambda: True)
    monkeypatch.setattr(native, "isa", lambda: isa)
    dense = torch.rand(8, 36)
    found = candidates_of(nn.Linear(36, 8), dense < 0.5, dense)
    assert found[0] == PackedNear() and (PackedCSR() in found) == (isa != "avx512")
    assert PackedNear() not in candidates_of(nn.Linear(36, 8), dense < 0.1, dense)
