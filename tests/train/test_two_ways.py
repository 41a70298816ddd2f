"""Training by the packed weight and its packed transpose equals training by the masked one."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs

INPUTS = torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8))


def trained(compute, steps=8, model=None, autocast=False, **options):
    model = network() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    method = gs.train.SRSTE(model, optimizer, "2:4", transposable=True, compute=compute, refresh=3, **options)
    grads = []
    for step in range(steps):
        x = INPUTS[step].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(x).float().square().sum().backward()
        grads.append(x.grad)
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    return model, method, grads


def test_equal_to_masked():
    ours, method, ours_grads = trained("sparse")
    wanted, _, wanted_grads = trained("masked")
    for name, weight in wanted.named_parameters():
        assert torch.allclose(ours.get_parameter(name), weight, atol=1e-5), name
    for one, other in zip(ours_grads, wanted_grads, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    for layer in method.layers:
        assert torch.equal(layer.mask, gs.nn.all_weights(wanted)[layer.name].mask())


def test_masks_are_two_of_four_both_ways_and_chosen_every_third_step():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    gs_method = gs.train.SRSTE(model, optimizer, "2:4", transposable=True, compute="sparse", refresh=3)
    seen = []
    for step in range(7):
        model(INPUTS[step]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gs_method.step()
        seen.append(model[0].weight.mask())
        for mask in (seen[-1], seen[-1].t()):
            assert mask.reshape(-1, 4).sum(1).unique().tolist() == [2]
    changed = [step + 2 for step in range(6) if not torch.equal(seen[step], seen[step + 1])]
    assert set(changed) <= {3, 6} and changed


def test_autocast():
    ours, _, _ = trained("sparse", steps=2, autocast=True)
    wanted, _, _ = trained("masked", steps=2, autocast=True)
    for name, weight in wanted.named_parameters():
        assert torch.allclose(ours.get_parameter(name), weight, atol=2e-2), name
    assert ours[0].forward.packed.values.dtype is torch.bfloat16


def test_what_changes_outside_of_a_step_is_seen():
    model, method, _ = trained("sparse", steps=2)
    with torch.no_grad():
        model[0].weight.mul_(2)
        wanted = torch.nn.functional.linear(INPUTS[0], model[0].weight, model[0].bias)
        assert torch.allclose(model[0](INPUTS[0]), wanted, atol=1e-5)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(INPUTS[0]), model(INPUTS[0])) and copied[0].forward.module is copied[0]
    method.close()
    assert "forward" not in model[0].__dict__
    assert torch.allclose(model(INPUTS[0]), copied(INPUTS[0]), atol=1e-5)


def test_resume():
    model, method, _ = trained("sparse", steps=4)
    optimizer = method.optimizer
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), method.state_dict()])
    other = network()
    again = torch.optim.AdamW(other.parameters(), lr=0.05)
    resumed = gs.train.SRSTE(other, again, "2:4", transposable=True, compute="sparse", refresh=3)
    for part, state in zip((other, again, resumed), saved, strict=True):
        part.load_state_dict(state)
    for net, opt, made in ((model, optimizer, method), (other, again, resumed)):
        for step in (4, 5, 6):
            net(INPUTS[step]).square().sum().backward()
            opt.step()
            opt.zero_grad()
            made.step()
    for name, weight in model.named_parameters():
        assert torch.equal(other.get_parameter(name), weight)


def test_compiled():
    model, _, _ = trained("sparse", steps=1)
    compiled = torch.compile(model, backend="aot_eager")
    x = INPUTS[1].clone().requires_grad_()
    out = compiled(x)
    out.square().sum().backward()
    grads = [x.grad, model[0].weight.grad]
    x.grad, model[0].weight.grad = None, None
    wanted = model(x)
    wanted.square().sum().backward()
    assert torch.allclose(out, wanted)
    assert all(torch.allclose(a, b) for a, b in zip(grads, (x.grad, model[0].weight.grad), strict=True))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"compute": "fast"}, "must be 'masked' or 'sparse'"),
        ({"compute": "sparse"}, "with transposable=True"),
        ({"compute": "sparse", "transposable": True, "schedule": "decay", "until": 5}, "no schedule"),
        ({"transposable": True, "how": "2:8"}, "needs n of every 4"),
        ({"refresh": 0}, "refresh=0 must be a number of steps"),
    ],
)
def test_bad_options(options, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        gs.train.SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1), options.pop("how", "2:4"), **options)


def test_only_linear_layers():
    model = nn.Sequential(nn.Conv2d(4, 8, 1))
    with pytest.raises(ValueError, match="none of the layers is one"):
        gs.train.SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1), "2:4", transposable=True, compute="sparse")
