import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gossamer.prune.capture import Capture, columns


def outputs_match(layer, x, groups=1):
    """Every output is the weight's row times the captured columns: the unfolding is right."""
    seen = []
    original = columns

    with torch.no_grad():
        import gossamer.prune.capture as module

        def spy(x, how=()):
            seen.append(original(x, how))
            return seen[-1]

        module.columns = spy
        try:
            with Capture({"w": layer.weight}) as capture:
                out = layer(x)
        finally:
            module.columns = original
    capture.end_batch()
    cols = seen[0]  # groups, tokens, columns
    weight = layer.weight.detach().view(groups, -1, cols.shape[2])
    product = (weight @ cols.mT).reshape(layer.weight.shape[0], out.shape[0], -1)  # outputs, batch, places
    want = (
        out.flatten(2).transpose(0, 1)
        if layer.bias is None
        else (out - layer.bias.view(1, -1, *[1] * (out.dim() - 2))).flatten(2).transpose(0, 1)
    )
    torch.testing.assert_close(product, want.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}, {"padding": "valid"},
     {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}, {"padding": 1, "padding_mode": "circular"}],
    ids=str,
)  # fmt: skip
def test_convolutions(options):
    outputs_match(nn.Conv1d(4, 6, 3, **options), torch.randn(2, 4, 12), options.get("groups", 1))
    outputs_match(nn.Conv2d(4, 6, (3, 5), **options), torch.randn(2, 4, 9, 11), options.get("groups", 1))


def test_conv3d_and_depthwise():
    outputs_match(nn.Conv3d(2, 3, 2, stride=2), torch.randn(2, 2, 4, 5, 6))
    outputs_match(nn.Conv2d(6, 6, 3, groups=6, padding=1), torch.randn(2, 6, 5, 5), 6)


def test_layers_with_the_same_input_share_one_sum():
    q, k, v, other = (nn.Linear(4, 4) for _ in range(4))
    weights = {"q": q.weight, "k": k.weight, "v": v.weight, "o": other.weight}
    capture = Capture(weights)
    total = torch.zeros(4, 4)
    for _ in range(3):
        x = torch.randn(5, 4)
        total += x.T @ x
        with torch.no_grad(), capture:
            other(q(x)), k(x), v(x)
        capture.end_batch()
    assert capture.grams["q"] is capture.grams["k"] is capture.grams["v"]
    assert capture.grams["o"] is not capture.grams["q"]
    torch.testing.assert_close(capture.grams["q"].total[0], total)


def test_they_part_when_their_inputs_do():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    capture = Capture({"a": a.weight, "b": b.weight})
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    with torch.no_grad():
        with capture:
            a(x), b(x)
        capture.end_batch()
        with capture:
            a(x), b(y)
        capture.end_batch()
    torch.testing.assert_close(capture.grams["a"].total[0], 2 * x.T @ x)
    torch.testing.assert_close(capture.grams["b"].total[0], x.T @ x + y.T @ y)


def test_changed_in_place_is_another_input():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    capture = Capture({"a": a.weight, "b": b.weight})
    x = torch.randn(4, 3)
    with torch.no_grad(), capture:
        a(x)
        x.mul_(2)
        b(x)
    capture.end_batch()
    torch.testing.assert_close(4 * capture.grams["a"].total, capture.grams["b"].total)


def test_multihead_attention_is_seen_inside():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    with torch.no_grad(), Capture({"in": attention.in_proj_weight, "out": attention.out_proj.weight}) as capture:
        attention(x, x, x, need_weights=False)
    capture.end_batch()
    torch.testing.assert_close(capture.grams["in"].total[0], x.flatten(0, 1).T @ x.flatten(0, 1))
    assert capture.grams["out"].tokens == 10


def test_functional_use_counts():
    w = torch.randn(3, 4)
    x = torch.randn(2, 4)
    with Capture({"w": w}) as capture:
        F.linear(x, w)
        F.linear(input=x, weight=w)
    capture.end_batch()
    torch.testing.assert_close(capture.grams["w"].total[0], 2 * x.T @ x)
