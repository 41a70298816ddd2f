"""Hard concrete gates: they close by their price, and are fixed at the end."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import gossamer as gs


def run(price, count=30, **options):
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = gs.train.HardConcrete(model, optimizer, price=price, until=20, **options)
    for step in range(count):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(6, 16)).square().mean().backward()
        optimizer.step()
        method.step()
    return model, method


def test_a_higher_price_closes_more():
    kept = [int(run(price, lr=1.0)[0].weight.mask().sum()) for price in (0.0, 1.5, 10.0)]
    assert kept[0] == 128 and kept[2] == 0 and kept == sorted(kept, reverse=True)


def test_gates_stand_still_after_until():
    model, method = run(0.05, 22, lr=1.0)
    mask, alpha = model.weight.mask(), method.layers[0].extra["log_alpha"].clone()
    gate = method.layers[0].extra["gate"].clone()
    model(torch.randn(6, 16)).square().mean().backward()
    method.optimizer.step()
    method.step()
    own = method.layers[0].extra
    assert torch.equal(model.weight.mask(), mask) and torch.equal(own["log_alpha"], alpha)
    assert torch.equal(own["gate"], gate)


def test_the_model_computes_with_weights_times_gates():
    model, method = run(0.05, 5)
    own = method.layers[0].extra
    torch.testing.assert_close(model.weight.to_dense().detach(), own["dense"] * own["gate"])


def network(*widths):
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def teach(model, method, steps, scale=1.0, first=0):
    """Train on labels of a random linear map; the share of gates that are expected to be open, after each step."""
    optimizer, shares = method.optimizer, []
    width, classes = model[0].in_features, model[-1].out_features
    known = torch.randn(width, classes, generator=torch.Generator().manual_seed(1))
    for step in range(first, first + steps):
        x = torch.randn(32, width, generator=torch.Generator().manual_seed(step))
        loss = scale * nn.functional.cross_entropy(model(x), (x @ known).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.step()
        expected = sum(float(method.gates.penalty(layer.extra["log_alpha"])) for layer in method.layers)
        shares.append(expected / sum(layer.size for layer in method.layers))
    return shares


@pytest.mark.parametrize("widths", [(16, 8), (64, 128, 64, 10), (200, 300, 10)], ids=str)
@pytest.mark.parametrize(
    ("sparsity", "until", "options"),
    [(0.9, 60, {}), (0.5, 60, {"lr": 0.05}), (0.9, 60, {"scale": 1e4, "lr": 1e-5}),
     (0.9, 60, {"scale": 1e-4, "lr": 1e3}), (0.9, 200, {"gates": 0.01}), (0.9, 60, {"gates": 5.0}),
     (0.9, 60, {"opening": 4.0}), (0.9, 20, {}),
     (0.95, 90, {"schedule": "cosine", "start": 30}), (0.9, 60, {"optimizer": torch.optim.AdamW, "lr": 1e-2})],
    ids=str,
)  # fmt: skip
def test_a_wanted_sparsity_is_reached(widths, sparsity, until, options):
    torch.manual_seed(0)
    options = dict(options)
    scale, gates = options.pop("scale", 1.0), options.pop("gates", None)
    model = network(*widths)
    optimizer = options.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=options.pop("lr", 0.1))
    method = gs.train.HardConcrete(model, optimizer, sparsity, until=until, lr=gates, **options)
    shares = teach(model, method, until - 1, scale)
    assert shares[-1] == pytest.approx(1 - sparsity, abs=0.02)  # before the cut
    teach(model, method, 1, scale, until - 1)
    size, kept = sum(layer.size for layer in method.layers), sum(layer.budget for layer in method.layers)
    for _ in range(2):
        assert sum(layer.kept for layer in method.layers) == size - round(sparsity * size) == kept
        assert all(int(torch.count_nonzero(layer.weight)) == layer.kept == layer.budget for layer in method.layers)
        masks = [layer.mask.clone() for layer in method.layers]
        teach(model, method, 4, scale, until)
        assert all(torch.equal(layer.mask, mask) for layer, mask in zip(method.layers, masks, strict=True))


def test_the_schedule_is_followed():
    torch.manual_seed(0)
    model = network(64, 100, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.HardConcrete(model, optimizer, 0.8, until=100, start=20, schedule="linear")
    shares = teach(model, method, 99)
    first = shares[0]
    assert shares[:20] == [first] * 20 and first > 0.97
    for step in (30, 50, 70, 90):
        assert shares[step - 1] == pytest.approx(first + (step - 20) / 80 * (0.2 - first), abs=0.02)


def test_gates_of_half_precision_weights_are_float32():
    torch.manual_seed(0)
    model = network(32, 64, 8).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.HardConcrete(model, optimizer, 0.9, until=40)
    for step in range(42):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).bfloat16()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert model[0].weight.dtype == torch.bfloat16 and method.layers[0].extra["log_alpha"].dtype == torch.float32
    assert method.log()["density"] == pytest.approx(0.1, abs=1e-3)


def test_training_resumes_exactly():
    def made():
        torch.manual_seed(0)
        model = network(24, 40, 6)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, gs.train.HardConcrete(model, optimizer, 0.9, until=25)

    model, _, method = made()
    teach(model, method, 30)
    for stop in (1, 10, 24, 25, 27):
        parts = made()
        teach(parts[0], parts[2], stop)
        states = copy.deepcopy([part.state_dict() for part in parts])
        parts = made()
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        teach(parts[0], parts[2], 30 - stop, first=stop)
        for one, other in zip(method.layers, parts[2].layers, strict=True):
            assert torch.equal(one.weight, other.weight) and torch.equal(
                one.extra["log_alpha"], other.extra["log_alpha"]
            )


def test_a_layer_without_gradients_is_cut_with_the_others():
    torch.manual_seed(0)
    model = network(16, 12, 4)
    model.unused = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.HardConcrete(model, optimizer, 0.75, until=30)
    for step in range(31):
        torch.manual_seed(step)
        model[2](model[1](model[0](torch.randn(8, 16)))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert sum(layer.kept for layer in method.layers) == sum(layer.size for layer in method.layers) // 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"sparsity": "2:4"}, "doesn't support 2:4: its gates decide"), ({"sparsity": gs.Blocks(0.9)}, "its gates decide"),
     ({"sparsity": 0.9, "price": 1e-3}, "one follows from the other"), ({"sparsity": 1.0}, "must be from 0 to below 1"),
     ({"sparsity": -0.1}, "must be from 0"), ({"price": float("nan")}, "price=nan must be a number from 0"),
     ({"lr": -1.0}, "lr=-1.0 must be"), ({"start": 2}, "until=2 must be after start=2"),
     ({"until": 0}, "must be after"),
     ({"distribution": "erk"}, "its gates decide, in all layers"), ({"schedule": "steep"}, "unknown schedule")],
    ids=str,
)  # fmt: skip
def test_what_is_refused(options, message):
    model = nn.Linear(16, 8)
    with pytest.raises(ValueError, match=message):
        gs.train.HardConcrete(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"until": 2, **options})
    assert type(model.weight) is nn.Parameter


@pytest.mark.parametrize("options", [{"pattern": "2:4"}, {"score": "magnitude"}])
def test_patterns_and_scores_are_refused(options):
    model = nn.Linear(16, 8)
    with pytest.raises(ValueError, match="gates decide"):
        gs.train.HardConcrete(model, torch.optim.SGD(model.parameters(), lr=0.1), until=2, **options)
