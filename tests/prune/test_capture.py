import torch
from torch import nn
from torch.nn import functional as F

from gossamer.prune.capture import Capture, Recorder


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


def test_padding_does_not_count():
    layer, x = nn.Linear(3, 2), torch.randn(2, 4, 3)
    tokens = torch.tensor([[True, True, False, False], [True, True, True, False]])
    for seen in (x, x.view(8, 3), x[:, :, None].expand(2, 4, 2, 3)):
        capture = Capture({"w": layer.weight})
        capture.tokens = tokens
        with torch.no_grad(), capture:
            layer(seen)
        capture.end_batch()
        kept = x[tokens]
        torch.testing.assert_close(capture.grams["w"].total[0], kept.T @ kept * (2 if seen.dim() == 4 else 1))
    capture = Capture({"w": layer.weight})
    capture.tokens = tokens
    with torch.no_grad(), capture:
        layer(x[:, 0])  # one token of each: not arranged by tokens
    capture.end_batch()
    assert capture.grams["w"].tokens == 2


def test_activations_of_the_dense_model_are_paired_in_order():
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    weights = {"one": one.weight, "two": two.weight}
    x, dense = torch.randn(2, 5, 3)
    recorder, capture = Recorder(weights), Capture(weights)
    with torch.no_grad(), recorder:
        two(one(dense).relu_())
    assert recorder.order() == {"one": 0, "two": 1}
    capture.dense = recorder.take()
    with torch.no_grad(), capture:
        y = one(x)
        two(y)
    capture.end_batch()
    torch.testing.assert_close(capture.grams["one"].moved[0][0], (dense - x).T @ x)
    with torch.no_grad():
        torch.testing.assert_close(capture.grams["two"].moved[0][0], (one(dense).relu() - y).T @ y)
    assert recorder.take() == [] and recorder.order() == {}


def test_activations_of_another_shape_are_not_paired():
    """In a mixture of experts, the pruned model may send a token to another expert."""
    layer = nn.Linear(3, 3)
    recorder, capture = Recorder({"w": layer.weight}), Capture({"w": layer.weight})
    with torch.no_grad(), recorder:
        layer(torch.randn(4, 3))
    capture.dense = recorder.take()
    with torch.no_grad(), capture:
        layer(torch.randn(5, 3))
    capture.end_batch()
    assert capture.grams["w"].tokens == 5 and not capture.grams["w"].moved


def test_what_was_recorded_is_not_written_to():
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    recorder = Recorder({"w": layer.weight})
    with torch.no_grad(), recorder:
        layer(x)
        x.zero_()
    assert torch.equal(recorder.take()[0].x, torch.ones(2, 3))
