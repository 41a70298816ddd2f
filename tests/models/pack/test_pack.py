"""pack_: the same numbers, faster formats, and a report that says what was done."""

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.formats import Condensed, PackedCSR, PackedNear, PackedNM
from gossamer.models.pack import tune as pack_tune
from gossamer.models.pack.tune import fitting


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_tune, "_file", lambda: tmp_path / "pack.json")
    monkeypatch.setattr(pack_tune, "SECONDS", 0.001)


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64), torch.nn.Linear(64, 4)
    )


@pytest.mark.parametrize("tune", [True, False])
@pytest.mark.parametrize("how", ["95%", "1:20:g4", "fan-in 95%", "50%"])
def test_same_numbers_and_all_layers_reported(how, tune, capsys):
    net = gs.sparsify_(model(), {"3": None, "*": how})
    x = torch.randn(32, 256)
    before = net(x)
    report = gs.pack_(net, x, tune=tune)
    torch.testing.assert_close(net(x), before, rtol=1e-5, atol=1e-5)
    assert [row.name for row in report.layers] == ["0.weight", "2.weight"]
    assert all(row.tokens == (32,) for row in report.layers)
    assert "0.weight" in capsys.readouterr().out
    for row, layer in zip(report.layers, (net[0], net[2]), strict=True):
        format = layer.weight.format
        assert str(format) == row.format
        assert row.gain >= 1.0  # dense stays where dense wins


def test_measured_once_for_a_machine(monkeypatch):
    net = gs.sparsify_(model(), "95%")
    first = gs.pack_(net, torch.randn(8, 256))
    monkeypatch.setattr(pack_tune, "_interleaved", lambda *_, **__: pytest.fail("measured again"))
    second = gs.pack_(gs.sparsify_(model(), "95%"), torch.randn(8, 256))
    assert [row.format for row in first.layers] == [row.format for row in second.layers]


def test_without_an_example_one_token_counts_as_much_as_many(monkeypatch):
    # packed: ten times faster at one token, 5 % slower at 128, where dense takes a hundred times as long
    def timed(x, weights, call, between):
        dense = {1: 10e-6, 16: 100e-6, 128: 1000e-6}[x.shape[0]]
        packed = {1: 1e-6, 16: 100e-6, 128: 1050e-6}[x.shape[0]]
        return {f: dense if isinstance(f, gs.Dense) else packed for f in weights}

    monkeypatch.setattr(pack_tune, "_interleaved", timed)
    for _ in range(2):  # measured, and from the cache
        net = gs.sparsify_(torch.nn.Linear(256, 512), "95%")
        (row,) = gs.pack_(net).layers
        assert row.tokens == (1, 16, 128) and row.format.startswith("PackedCSR")
        assert row.dense_us == pytest.approx(100) and row.gain == pytest.approx((10 / 1.05) ** (1 / 3))
    example = torch.nn.Sequential(*(gs.sparsify_(torch.nn.Linear(256, 256), "95%") for _ in range(2)))
    assert {row.format for row in gs.pack_(example, torch.randn(128, 256)).layers} == {"Masked()"}


def test_a_broken_cache_is_no_harm(tmp_path):
    (tmp_path / "pack.json").write_text("{not json")
    assert gs.pack_(gs.sparsify_(model(), "95%")).layers


def test_packs_zeros_of_other_tools_and_convolutions():
    net = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 10))
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.mul_(torch.rand_like(layer.weight) < 0.05)
    x = torch.randn(2, 16, 6, 6)
    with torch.no_grad():  # a weight that a graph still uses can't be replaced
        before = net(x)
    report = gs.pack_(net, x)
    torch.testing.assert_close(net(x), before, rtol=1e-5, atol=1e-5)
    assert [row.tokens for row in report.layers] == [(72,), (2,)]


def test_what_cannot_be_packed_is_said():
    net = torch.nn.Sequential(
        torch.nn.ConvTranspose1d(8, 8, 3), torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(8, 8).double()
    )
    gs.sparsify_(net, "50%")
    report = gs.pack_(net)
    assert not report.layers
    reasons = dict(report.skipped)
    assert (
        "example_inputs" in reasons["0.weight"]
        and "example_inputs" in reasons["1.weight"]
        and "float64" in reasons["2.weight"]
    )


def test_training_mode_and_dropout_are_left_alone():
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.BatchNorm1d(64)).train()
    gs.sparsify_(net, "90%")
    state = torch.get_rng_state()
    gs.pack_(net, torch.randn(4, 64, generator=torch.Generator()))
    assert net[1].training and int(net[2].num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("how", "formats"),
    [
        ("2:4", [PackedNear(), PackedNM(2, 4)]),
        ("1:10", [PackedCSR(), PackedCSR(240), PackedNM(1, 10)]),
        ("fan-in 90%", [Condensed(), PackedCSR(240)]),
        ("70%", [PackedCSR()]),
        ("50%", [PackedNear()]),
    ],
)
def test_which_formats_fit(how, formats):
    assert fitting(gs.sparsify(torch.randn(64, 320), how).mask()) == formats


@pytest.mark.parametrize("block", [(4, 4), (16, 16), (1, 8)], ids=str)
def test_blocks_are_a_candidate(block):
    pattern = gs.Blocks(0.8, block)
    assert fitting(pattern.select(torch.rand(64, 96)))[-1] == gs.BSR(block)
    assert fitting(pattern.select(torch.rand(70, 101)))[-1] == gs.BSR(block)  # the last blocks are cut
    ragged = pattern.select(torch.rand(64, 96))
    ragged[tuple(ragged.nonzero()[0])] = False
    assert gs.BSR(block) not in fitting(ragged)


@pytest.mark.skipif(not native.load(), reason="no native kernels here")
def test_a_layer_of_blocks_stays_one(capsys):
    model = gs.sparsify_(torch.nn.Linear(256, 256), "block 8x8 90%")
    x = torch.randn(128, 256)
    expected = model(x)
    report = gs.pack_(model, x, tune=False)
    assert report.layers[0].format == "BSR((8, 8))"
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
