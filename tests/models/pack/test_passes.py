"""Weights that are as far away as in a call of the whole model: how many bytes and copies. No time is asserted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.models.pack import int8, passes, truth, tune
from gossamer.models.pack.pack import pack_
from gossamer.models.pack.passes import bytes_of, far_away, in_the_key, largest_cache, read_by_a_call
from gossamer.models.weights import all_weights


@pytest.fixture
def files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(passes, "_CACHES", tmp_path)
    largest_cache.cache_clear()
    yield tmp_path
    largest_cache.cache_clear()


def test_the_largest_cache_is_the_last(files: Any) -> None:
    for index, size in enumerate(["32K", "1024K\n", "96M\n"]):
        (files / f"index{index}").mkdir()
        (files / f"index{index}" / "size").write_text(size)
    assert largest_cache() == 96 << 20


@pytest.mark.parametrize("size", [None, "", "unknown", "0K"])
def test_a_cache_of_unknown_size_counts_as_a_usual_one(files: Any, size: str | None) -> None:
    if size is not None:
        (files / "index3").mkdir()
        (files / "index3" / "size").write_text(size)
    assert largest_cache() == 32 << 20


@pytest.mark.parametrize(("text", "bytes_"), [("1G", 1 << 30), ("7", 7), ("K", 0), ("-3K", 0), ("1.5M", 0)])
def test_sizes_as_linux_writes_them(text: str, bytes_: int) -> None:
    assert bytes_of(text) == bytes_


def test_shared_weights_count_once_and_tables_do_not() -> None:
    class Tied(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(50, 8), nn.BatchNorm1d(8), nn.Linear(8, 50, bias=False)
            self.again = self.head
            if tied:
                self.head.weight = self.table.weight

    norm = 4 * 8 * 4 + 8  # weight, bias, mean, variance; and a count
    assert read_by_a_call(Tied(False)) == read_by_a_call(Tied(True)) == 4 * 8 * 50 + norm


def test_of_what_is_to_be_packed_only_kept_values_count() -> None:
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 32, bias=False), nn.Linear(32, 8)), {"0": "75%"})
    weights = all_weights(model)
    assert read_by_a_call(model, [weights["0.weight"]]) == 4 * 512 + 4 * (8 * 32 + 8)
    layer = gs.quantize_(gs.sparsify_(nn.Linear(64, 64), "90%"), "int8")
    assert read_by_a_call(layer) == layer.packed.nbytes + 4 * 64


def test_twice_the_cache_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "largest_cache", lambda: 100)
    assert read_by_a_call(nn.Linear(64, 64)) == 200


def test_keys_are_the_same_for_about_the_same_bytes() -> None:
    sizes = {in_the_key(n) for n in range(0, 1 << 20, 4099)}
    assert sizes == {"weights of 1 MiB"}
    assert [in_the_key(n << 20) for n in (1, 2, 3, 4, 5, 64)] == [f"weights of {n} MiB" for n in (1, 2, 4, 4, 8, 64)]


@pytest.mark.parametrize(("between", "copies"), [(0, 1), (99, 1), (3 * 4 * 10, 1), (5 * 3 * 4 * 10, 5), (599, 4)])
def test_copies_take_turns_and_are_equal(between: int, copies: int) -> None:
    sparse = gs.from_dense(torch.eye(4), gs.CSR())
    small = {"a": torch.arange(10.0), "b": torch.arange(10.0), "c": torch.arange(10.0)}
    seen: dict[str, list[Tensor]] = {"a": [], "b": [], "c": []}
    calls = far_away(small, between, lambda form, weight: seen[form].append(weight))
    for _ in range(2 * copies):
        for call in calls.values():
            call()
    for form, weights in seen.items():
        assert all(torch.equal(weight, small[form]) for weight in weights)
        assert len({weight.data_ptr() for weight in weights}) == copies
        assert [w.data_ptr() for w in weights[:copies]] == [w.data_ptr() for w in weights[copies:]]
    of_sparse = far_away({"a": sparse}, 10 * sparse.nbytes, lambda form, weight: weight)["a"]
    assert all(torch.equal(of_sparse().to_dense(), torch.eye(4)) for _ in range(12))


@pytest.mark.parametrize("bits", [8, 32])
def test_pack_measures_with_the_weights_of_the_whole_model(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def steady(once: Any, first: Any, bound: float, alone: bool = False) -> Any:
        if bits == 8:
            assert len(once.args[0]) >= 2
            return dict.fromkeys(once.args[0], 1.0), False
        seen.append(once.keywords["between"] if "between" in once.keywords else once.func.keywords["between"])
        return dict.fromkeys(once.args[1], 1.0), False

    def far(weights: Any, between: int, call: Any) -> Any:
        seen.append(between)
        return far_away(weights, between, call)

    monkeypatch.setattr(truth, "steady", steady)
    monkeypatch.setattr(int8, "far_away", far)
    monkeypatch.setattr(tune, "known_times", lambda key: None)
    model = gs.sparsify_(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)), "50%")
    if bits == 8:
        gs.quantize_(model, "int8")
        wanted = sum(layer.packed.nbytes for layer in (model[0], model[2])) + 4 * (256 + 8)
    else:
        wanted = 4 * (32 * 256 + 128 * 8 + 256 + 8)
    pack_(model, torch.randn(4, 64), quiet=True)
    assert seen == [wanted, wanted]
