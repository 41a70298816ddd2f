"""Every call says how much it has taken, and why the rest is dense."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import gossamer as gs
from gossamer.models.coverage import Left, is_depthwise, reason_to_stay_dense, taken_and_left
from gossamer.models.weights import all_weights

#: A layer, an input, and why its weight stays dense; None if it is made sparse.
KINDS: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "linear": (lambda: nn.Linear(8, 8), None),
    "subclass": (lambda: type("Own", (nn.Linear,), {})(8, 8), None),
    "conv1d": (lambda: nn.Conv1d(8, 8, 3), None),
    "grouped": (lambda: nn.Conv2d(8, 8, 3, groups=2), None),
    "transposed": (lambda: nn.ConvTranspose3d(8, 8, 2), None),
    "attention": (lambda: nn.MultiheadAttention(8, 2), None),
    "depthwise": (lambda: nn.Conv1d(8, 8, 3, groups=8), "depthwise convolutions"),
    "embedding": (lambda: nn.Embedding(8, 8), "embeddings"),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "computed by a parametrization"),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), "computed by a parametriza"),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), "computed by a parametrization"),
    "masked": (lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5), "masked by torch.nn.utils"),
    "recurrent": (lambda: nn.LSTM(8, 8), "parameters of LSTM, which is not supported"),
    "bilinear": (lambda: nn.Bilinear(8, 8, 8), "parameters of Bilinear, which is not supported"),
    "norm": (lambda: nn.LayerNorm(8), "vectors"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sparsify_takes_a_layer_or_says_why_not(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make, reason = KINDS[kind]
    model = nn.Sequential(make(), nn.Linear(8, 8))
    computed = reason is not None and reason.startswith(("computed", "masked"))
    with caplog.at_level(logging.INFO, logger="gossamer"):
        if computed:
            with pytest.warns(UserWarning, match="left dense: 0"):
                gs.sparsify_(model, "50%")
        else:
            gs.sparsify_(model, "50%")
    line = caplog.messages[-1]
    count = len(gs.nn.sparse_weights(model))
    assert line.startswith(f"sparsify_: {count} sparse weight") and "% of all parameters; dense: " in line
    assert (count == 1) == (reason is not None)
    if reason is not None:
        assert reason in line
        if kind == "depthwise":
            gs.sparsify_(model, "50%", where="0")
            assert len(gs.nn.sparse_weights(model)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_pack_says_the_same(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, reason = KINDS[kind]
    model = nn.Sequential(make(), nn.Linear(8, 8))
    report = gs.pack_(model, tune=False)
    if kind == "masked":  # which pack_ takes: the zeros are there
        assert len(report.layers) == 1
        return
    why = "not sparse"
    assert capsys.readouterr().out.replace("\n", " ").startswith("no sparse layer to pack: 0 sparse weights, 0.0 % of")
    reasons = {left.name: left.reason for left in report.dense}
    assert set(reasons) == set(all_weights(model)) and reasons["1.weight"] == why
    assert any((reason or why) in each for each in reasons.values()) and report.sparsity == 0.0
    assert sum(left.size for left in report.dense) == report.parameters


def test_a_model_of_depthwise_convolutions_alone() -> None:
    with pytest.raises(ValueError, match=r"unless it is named by where \(weight: depthwise convolutions\)"):
        gs.sparsify_(nn.Conv1d(4, 4, 3, groups=4), "50%")


def test_the_line_by_hand() -> None:
    left = [Left("a", 5, "vectors"), Left("b", 15, "embeddings"), Left("c", 5, "vectors")]
    line = "1 sparse weight, 75.0 % of all parameters; dense: 15.0 % embeddings, 10.0 % vectors"
    assert taken_and_left(1, 75, left) == line
    assert taken_and_left(0, 0, []) == "0 sparse weights, 0.0 % of all parameters"
    tied = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
    tied[1].weight = tied[0].weight
    (weight,) = all_weights(tied).values()
    assert reason_to_stay_dense(weight) == "output layers tied to an embedding"
    assert torch.equal(weight.dense(), tied[0].weight)


def test_depthwise_is_one_channel_a_group():
    assert is_depthwise(nn.Conv1d(4, 8, 3, groups=4))
    assert not is_depthwise(nn.Conv1d(1, 8, 3))
