"""Formats that fit a pattern, their times, and the file that keeps them: no time is asserted."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import Condensed, Dense, PackedCSR, PackedNear, PackedNM
from gossamer.models.pack import truth, tune
from gossamer.models.pack.layers import options_of
from gossamer.models.pack.tune import Timing, fastest, fitting, guess, key_of, load_known, measure, store_known


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "folder" / "pack.json")
    return tmp_path / "folder" / "pack.json"


def test_seconds_by_hand():
    timing = Timing((1.0, 4.0))
    assert timing.seconds((3, 1)) == 7 and timing.seconds(None) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="zip"):
        timing.seconds((1, 1, 1))


def test_a_packed_format_must_beat_dense_by_more_than_noise():
    def of(packed):
        return fastest({Dense(): Timing((1.0,)), PackedCSR(): Timing((packed,))}, (1,))

    assert of(0.99) == Dense() and of(0.9) == PackedCSR() and of(1.1) == Dense()
    assert fastest({PackedCSR(): Timing((1.0,)), PackedNear(): Timing((0.99,))}, (1,)) == PackedNear()


@pytest.mark.parametrize(
    ("pattern", "cols", "formats"),
    [
        ("50%", 64, [PackedNear()]),
        ("90%", 64, [PackedCSR()]),
        ("90%", 129, [PackedCSR(), PackedCSR(240)]),
        ("2:4", 64, [PackedNear(), PackedNM(2, 4)]),
        ("fan-in 80%", 64, [Condensed()]),
        ("block 4x4 80%", 64, [PackedCSR(), gs.BSR((4, 4))]),
    ],
)
def test_formats_that_fit(pattern, cols, formats):
    x = torch.randn(64, cols, generator=torch.Generator().manual_seed(0))
    assert fitting(gs.sparsify(x, pattern).mask()) == formats


def test_an_empty_weight_has_a_format():
    assert fitting(torch.zeros(0, 8, dtype=torch.bool)) == [PackedCSR()]


def test_a_key_has_everything_that_times_depend_on():
    dense, mask = torch.zeros(8, 16), torch.ones(8, 16, dtype=torch.bool)
    base = key_of(dense, mask, [PackedCSR()], [(1, 16)])
    others = [
        key_of(torch.zeros(16, 8), mask.T, [PackedCSR()], [(1, 16)]),
        key_of(dense.double(), mask, [PackedCSR()], [(1, 16)]),
        key_of(dense, torch.zeros_like(mask), [PackedCSR()], [(1, 16)]),
        key_of(dense, mask, [PackedNear()], [(1, 16)]),
        key_of(dense, mask, [PackedCSR()], [(2, 16)]),
    ]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        others.append(key_of(dense, mask, [PackedCSR()], [(1, 16)]))
    finally:
        torch.set_num_threads(threads)
    assert len({base, *others}) == 1 + len(others)
    assert base == key_of(dense + 1, mask, [PackedCSR()], [(1, 16)])  # values don't matter


def test_times_are_kept_and_read_again(own_file):
    assert load_known() == {}
    store_known("a", {"Dense()": (1.0, 2.0)})
    store_known("b", {"Dense()": (3.0,)})
    assert load_known() == {"a": {"Dense()": [1.0, 2.0]}, "b": {"Dense()": [3.0]}} == json.loads(own_file.read_text())
    assert [p.name for p in own_file.parent.iterdir()] == ["pack.json"]  # nothing that is half written
    assert tune.known_times("a") == {"Dense()": [1.0, 2.0]} and tune.known_times("c") is None
    for broken in ("[1, 2]", "{", ""):
        own_file.write_text(broken)
        assert load_known() == {}


def test_a_folder_that_cannot_be_written_is_only_slower(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "file" / "pack.json")
    store_known("a", {"Dense()": (1.0,)})
    assert load_known() == {}


def measured(monkeypatch, times, clear=True):
    """Measure, where the clock says these times."""
    calls = []

    def steady(once, first, bound, alone=False):
        calls.append(once)
        return dict(times), clear

    monkeypatch.setattr(truth, "steady", steady)
    dense = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    mask = gs.NM(2, 4).select(dense.abs())
    found = measure(dense, mask, F.linear, [PackedNM(2, 4)], [(1, 16), (3, 16)], (1, 1))
    return found, calls, dense * mask


def test_what_was_measured_is_known_the_next_time(monkeypatch):
    found, calls, kept = measured(monkeypatch, {Dense(): 2.0, PackedNM(2, 4): 1.0})
    assert found[Dense()].times == (2.0, 2.0) and found[PackedNM(2, 4)].times == (1.0, 1.0) and len(calls) == 2
    assert torch.equal(found[PackedNM(2, 4)].tensor.to_dense(), kept)
    again, calls, _ = measured(monkeypatch, {})
    assert not calls and again[Dense()].times == (2.0, 2.0)
    assert torch.equal(again[PackedNM(2, 4)].tensor.to_dense(), kept)  # only the fastest is packed
    assert again[Dense()].weight is None


def test_what_cannot_be_believed_is_not_kept(monkeypatch):
    found, _, _ = measured(monkeypatch, {Dense(): 2.0, PackedNM(2, 4): 1.0}, clear=False)
    assert not found[Dense()].clear and load_known() == {}


def test_every_format_is_really_called():
    dense = torch.randn(8, 16)
    mask, seen = dense.abs() > 0.5, []

    def call(x, weight):
        seen.append(type(weight).__name__)
        return F.linear(x, weight)

    weights = {Dense(): dense, PackedCSR(): gs.from_dense(dense * mask, PackedCSR())}
    times = tune._interleaved(torch.randn(2, 16), weights, call, between=0)
    assert times.keys() == {Dense(), PackedCSR()} and set(seen) == {"Tensor", "SparseTensor"}


def test_guesses_grow_with_the_work_and_pack_the_best():
    dense = torch.randn(768, 768)
    mask = gs.Unstructured(0.95).select(dense.abs())
    found = guess(dense, mask, [PackedCSR()], [1, 512], (1, 1))
    assert all(t.times[0] < t.times[1] for t in found.values())
    best = fastest(found, (1, 1))
    assert found[best].weight is not None and sum(t.weight is not None for t in found.values()) == 1
    assert tune.dense_seconds(768, 768, 64) < tune.dense_seconds(768, 3072, 64)


MASK = torch.rand(8, 4, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.25
BASE = {
    "dense": torch.zeros(8, 4, 3, 3),
    "mask": MASK,
    "formats": [PackedCSR()],
    "shapes": [(1, 4, 9, 9)],
    "options": options_of(nn.Conv2d(4, 8, 3)),
}
CHANGES = {
    "stride": {"options": options_of(nn.Conv2d(4, 8, 3, stride=2))},
    "stride of one dimension": {"options": options_of(nn.Conv2d(4, 8, 3, stride=(1, 2)))},
    "padding": {"options": options_of(nn.Conv2d(4, 8, 3, padding=1))},
    "padding by a word": {"options": options_of(nn.Conv2d(4, 8, 3, padding="same"))},
    "dilation": {"options": options_of(nn.Conv2d(4, 8, 3, dilation=2))},
    "groups": {"options": options_of(nn.Conv2d(8, 8, 3, groups=2))},
    "transposed": {"options": options_of(nn.ConvTranspose2d(4, 8, 3))},
    "no convolution": {"options": options_of(nn.Linear(4, 8))},
    "shape of the weight": {"dense": torch.zeros(8, 4, 9, 1)},
    "type": {"dense": torch.zeros(8, 4, 3, 3, dtype=torch.bfloat16)},
    "density": {"mask": torch.ones_like(MASK)},
    "formats": {"formats": [PackedCSR(), PackedNM(1, 4)]},
    "shapes of the input": {"shapes": [(1, 4, 9, 9), (2, 4, 9, 9)]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_part_of_the_key_of_a_convolution_counts(change):
    assert key_of(**BASE) == key_of(**BASE)
    assert key_of(**{**BASE, **CHANGES[change]}) != key_of(**BASE)


def test_a_convolution_with_another_stride_has_another_key(monkeypatch):
    keys = []
    monkeypatch.setattr(tune, "known_times", lambda key: keys.append(key))
    monkeypatch.setattr(tune, "SECONDS", 0.001)
    for stride in (1, 2):
        gs.pack_(gs.sparsify_(nn.Conv2d(4, 8, 3, stride=stride), "75%"), torch.randn(1, 4, 9, 9), quiet=True)
    assert len(keys) == len(set(keys)) == 2
