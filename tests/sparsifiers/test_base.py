from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import patterns, scores
from gossamer.sparsifiers import (
    BlockwiseFraction,
    GroupedNM,
    HardConcrete,
    KeepAll,
    Movement,
    PerBlockFraction,
    RandomFraction,
    ScalarFraction,
    ScalarThreshold,
    Sparsifier,
    as_sparsifier,
)

X = torch.tensor(
    [
        [-9.0, 1.0, 8.0, -2.0, 0.0, 0.5, -7.0, 3.0],
        [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0],
        [4.0, -5.0, 6.0, -7.0, 8.0, -9.0, 2.0, -3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)

NAMED = [
    (KeepAll(), ("streaming", 1, "O(1)"), "KeepAll()"),
    (RandomFraction(0.5, seed=3), ("streaming", 1, "O(1)"), "RandomFraction(0.5, seed=3)"),
    (ScalarThreshold(1.0), ("streaming", 1, "O(1)"), "ScalarThreshold(1.0)"),
    (ScalarFraction(0.9), ("materializing", 2, "O(nnz)"), "ScalarFraction(0.9)"),
    (BlockwiseFraction(0.5, (2, 2)), ("materializing", 2, "O(nnz)"), "BlockwiseFraction(0.5, (2, 2))"),
    (PerBlockFraction(2, 4), ("blocking", 2, "O(b)"), "PerBlockFraction(2, 4)"),
    (GroupedNM(1, 4, 2), ("blocking", 2, "O(b)"), "GroupedNM(1, 4, 2)"),
    (Movement(0.5), ("materializing", 3, "O(nnz)"), "Movement(0.5)"),
    (HardConcrete(), ("materializing", 2, "O(nnz)"), "HardConcrete()"),
]
STREAMS = [s for s, cost, _ in NAMED if cost[0] != "materializing"] + [
    Sparsifier("50% per row"),
    Sparsifier("fan-in k=3", scores.Random(1)),
    Sparsifier("3:2:5"),
    Sparsifier("1:3", scores.Random(2)),
]


def test_by_hand() -> None:
    assert ScalarThreshold(6.0).mask(X).nonzero().tolist() == [[0, 0], [0, 2], [0, 6], [2, 3], [2, 4], [2, 5]]
    assert ScalarFraction(0.75).mask(X).sum(1).tolist() == [3, 0, 5, 0]
    assert PerBlockFraction(2, 4).mask(X).int().tolist() == [
        [1, 0, 1, 0, 0, 0, 1, 1],
        [1, 1, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 1],
    ]
    assert Movement(0.5).mask(X, grad=-X).sum().item() == 16
    assert HardConcrete().mask(X, log_alpha=X).equal(X > -2.398)  # sigmoid(x) = 1/12 at log(1/11)


@pytest.mark.parametrize(("sparsifier", "cost", "text"), NAMED, ids=lambda v: v if isinstance(v, str) else "")
def test_table(sparsifier: Sparsifier, cost: tuple[str, int, str], text: str) -> None:
    assert (sparsifier.kind, sparsifier.passes, sparsifier.memory) == cost
    assert repr(sparsifier) == text
    assert eval(text) == sparsifier
    again = pickle.loads(pickle.dumps(copy.deepcopy(sparsifier)))
    assert again == sparsifier and hash(again) == hash(sparsifier) and type(again) is type(sparsifier)
    assert as_sparsifier(sparsifier) is sparsifier


def test_equal_by_meaning() -> None:
    assert ScalarFraction(0.9) == Sparsifier("90%") == as_sparsifier(patterns.Unstructured(0.9))
    assert Sparsifier("90%") != Sparsifier("90%", scores.Random(0))
    assert Sparsifier("90%") != "90%"
    with pytest.raises(AttributeError):
        ScalarFraction(0.9).pattern = patterns.KeepAll()  # type: ignore[misc]


def test_a_score_with_context_materializes() -> None:
    for score in (scores.Gradient(), scores.Wanda(), scores.Fisher(), scores.Movement(), scores.HardConcrete()):
        assert Sparsifier("2:4", score).kind == "materializing"
    assert Sparsifier("2:4", scores.Random(1)).kind == "blocking"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_any_float_dtype_without_gradients(dtype: torch.dtype) -> None:
    x = X.to(dtype).requires_grad_()
    for sparsifier, _, _ in NAMED:
        mask = sparsifier.mask(x, grad=x, log_alpha=x)
        assert mask.dtype == torch.bool and mask.shape == x.shape and not mask.requires_grad


def test_random_fraction() -> None:
    x = torch.empty(100_000)
    assert RandomFraction(0.0).mask(x).all() and not RandomFraction(1.0).mask(x).any()
    assert RandomFraction(0.9, seed=1).mask(x).float().mean().item() == pytest.approx(0.1, abs=0.005)
    assert not torch.equal(RandomFraction(0.5, 1).mask(x), RandomFraction(0.5, 2).mask(x))


def test_mask_many() -> None:
    model = {"a": X[:2], "b": X[2:]}
    joint = Sparsifier("75% per model").mask_many(model)
    assert list(joint) == ["a", "b"]
    assert torch.equal(torch.cat(list(joint.values())), ScalarFraction(0.75).mask(X))
    one, two = Sparsifier("50%", scores.Gradient()).mask_many([X[:2], X[2:]], grad=[X[:2], X[2:]])
    assert int(one.sum()) == int(two.sum()) == 8
    with pytest.raises(ValueError, match="grad must have one value per tensor"):
        Movement(0.5).mask_many(model, grad={"a": X[:2]})
    with pytest.raises(TypeError, match="'b': Magnitude"):
        Sparsifier("50%").mask_many({"a": X, "b": X.int()})


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(STREAMS),
    st.lists(st.integers(0, 11), min_size=1, max_size=6),
    st.sampled_from([(), (1,), (7,), (3, 2)]),
)
def test_stream_is_the_mask_of_the_whole(sparsifier: Sparsifier, sizes: list[int], trailing: tuple[int, ...]) -> None:
    if not trailing and sparsifier.pattern.span(1) is None:
        return
    x = torch.randn(sum(sizes), *trailing, generator=torch.Generator().manual_seed(len(sizes))).mul(3).round()
    if trailing == (1,) and sparsifier.pattern == patterns.FanIn(k=3):
        return
    pairs = list(sparsifier.stream(iter(x.split(sizes))))
    empty = x[:0]
    assert torch.equal(torch.cat([empty, *(chunk for chunk, _ in pairs)]), x)
    assert torch.equal(torch.cat([empty.bool(), *(mask for _, mask in pairs)]), sparsifier.mask(x))


@pytest.mark.parametrize("sparsifier", STREAMS, ids=repr)
def test_stream_is_lazy(sparsifier: Sparsifier) -> None:
    """Chunks are asked for one at a time, and what waits is less than one block."""
    asked = 0

    def chunks() -> object:
        nonlocal asked
        for _ in range(50):
            asked += 1
            yield torch.rand(3, 6)

    out = 0
    for chunk, _ in sparsifier.stream(chunks()):  # type: ignore[arg-type]
        out += len(chunk)
        span = sparsifier.pattern.span(2)
        assert span is not None and 0 <= 3 * asked - out < span
    assert out == 150


def test_stream_errors() -> None:
    for sparsifier, cost, _ in NAMED:
        if cost[0] == "materializing":
            with pytest.raises(ValueError, match="is materializing"):
                sparsifier.stream([X])
    with pytest.raises(ValueError, match="one tensor"):
        list(KeepAll().stream([X, X[:, :3]]))
    with pytest.raises(ValueError, match="at least 1-d"):
        list(KeepAll().stream([torch.tensor(1.0)]))
    with pytest.raises(ValueError, match="1-d tensor is one row"):
        list(Sparsifier("fan-in 50%").stream([torch.rand(4)]))


def test_errors() -> None:
    with pytest.raises(ValueError, match="Allowed forms"):
        Sparsifier("lots")
    with pytest.raises(TypeError, match="Pattern"):
        as_sparsifier(0.9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="score must be"):
        Sparsifier("90%", "magnitude")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating-point"):
        ScalarFraction(0.5).mask(torch.arange(4))
    with pytest.raises(ValueError, match="NaN"):
        ScalarFraction(0.5).mask(torch.tensor([torch.nan, 1.0]))
    with pytest.raises(ValueError, match="from 0"):
        RandomFraction(1.5)
    with pytest.raises(ValueError, match="Pass grad="):
        Movement(0.5).mask(X)
