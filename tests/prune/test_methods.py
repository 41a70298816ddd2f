"""Every method with every pattern, on shapes that fit nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.patterns import as_pattern
from gossamer.prune import OBS, ByScore, Known, SparseGPT
from gossamer.prune.known import as_method
from gossamer.prune.portions import Portions, keep_few

PATTERNS = [
    "2:4", "1:3", "8:16", "2:32", "16:40", "4:2:8", "all:2:8", "64:2:16", "16:2:32", "3:2:5", "60%", "60% per row",
    "0%", "100%", "fan-in 90%", "fan-in k=1", "block 4x4 80%", "block 3x5 50%", "1:4:g2", "2:4:g1",
    "|x| > 0.5", "keep all",
]  # fmt: skip
METHODS = [
    ByScore(gs.Magnitude()), ByScore(gs.Wanda()), ByScore(gs.Random(1)), ByScore(gs.Gradient()), ByScore(gs.Fisher(8)),
    SparseGPT(), SparseGPT(bits=8), OBS("hessian"), OBS("fisher"),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=repr)
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PATTERNS),
    st.sampled_from([1, 2, 3, 5, 8, 17, 33]),
    st.sampled_from([1, 2, 3, 4, 7, 8, 9, 16, 31, 40, 65, 130]),
    st.sampled_from([1, 5, 200]),
)
def test_any_shape(method, how, rows, columns, tokens):
    pattern = as_pattern(how)
    weight, gram = torch.randn(rows, columns), gs.prune.Gram()
    gram.add(torch.randn(1, tokens, columns))
    gradients = method.collector(pattern, rows, columns, 5)
    for _ in range(5 if gradients is not None else 0):
        gradients.add(torch.randn(rows, columns))
    before = weight.clone()
    out = method.prune(weight, pattern, Known(gram, gradients))
    assert torch.equal(weight, before) and out.weight.isfinite().all() and not out.weight[~out.mask].any()
    if isinstance(pattern, gs.Threshold | gs.GroupedNM):
        return
    if not isinstance(pattern, gs.Blocks):  # whose edge blocks are of other sizes
        assert out.mask.sum() == pattern.select(torch.rand(rows, columns)).sum()
    assert torch.equal(pattern.select(out.mask.float()), out.mask)


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 9))
def test_keep_few_is_nm(columns, n, rows):
    scores = torch.randint(0, 4, (rows, columns)).float()
    if 1 <= n <= columns:
        assert torch.equal(keep_few(scores.T[None], n)[0].T, gs.NM(n, columns).select(scores))


@pytest.mark.parametrize("how", ["35%", "60% per row", "fan-in 90%", "fan-in k=3", "block 2x4 50%"])
def test_portions_add_up(how):
    pattern, scores = as_pattern(how), torch.rand(6, 50)
    portions = Portions(pattern, 6, 50, near=16)
    parts = [portions.select(scores[None, :, at : at + portions.width].mT, at) for at in range(0, 50, portions.width)]
    mask = torch.cat(parts, 1)[0].T
    assert mask.sum() == pattern.select(scores).sum() or how.startswith("block")


def test_wanda_takes_the_same_from_every_row_and_is_exact():
    weight = torch.rand(7, 9) * torch.tensor([1.0, 100.0, 1.0, 1.0, 1.0, 1.0, 0.001])[:, None]
    gram = gs.prune.Gram(torch.eye(9)[None])
    mask = ByScore(gs.Wanda()).prune(weight, gs.Unstructured(0.5), Known(gram)).mask
    assert int((~mask).sum()) == round(0.5 * 63) and set((~mask).sum(1).tolist()) <= {4, 5}


def test_names():
    assert as_method("obs") == OBS() and as_method(SparseGPT(damp=0.1)).damp == 0.1
    assert as_method("wanda") == as_method(gs.Wanda()) == as_method(gs.Sparsifier("2:4", gs.Wanda()))
    with pytest.raises(ValueError, match="needs log_alpha, which no calibration data can give"):
        as_method(gs.HardConcrete())
    with pytest.raises(ValueError, match="bits"):
        SparseGPT(bits=1)
    with pytest.raises(ValueError, match="curvature"):
        OBS("both")
