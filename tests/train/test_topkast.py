"""Top-KAST by hand: which weights move, and where they are pulled."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs


def test_top_kast_updates_the_larger_set_only():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.5)
    before = method.layers[0].extra["dense"].clone()
    layer(torch.randn(6, 16)).square().mean().backward()
    optimizer.step()
    method.step()
    assert int((method.layers[0].extra["dense"] != before).sum()) == 64


def test_the_pull_is_stronger_outside():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.25, penalty=0.1)
    (layer(torch.zeros(1, 4)) * 0).sum().backward()
    optimizer.step()
    # One weight of four is computed with: density 1/4, so others are pulled four times as much; the last one not.
    torch.testing.assert_close(method.layers[0].extra["dense"], torch.tensor([[3.6, 1.8, 1.2, 1.0]]))


def test_the_larger_set_is_twice_as_large_unless_given():
    def make(**options):
        layer = nn.Linear(16, 8)
        return gs.train.TopKAST(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.7, **options)

    assert make().backward == pytest.approx(0.4)
    with pytest.raises(ValueError, match=r"backward=0\.8 must be from 0 to sparsity=0\.7"):
        make(backward=0.8)


def test_both_sets_are_selected_every_few_steps():
    torch.manual_seed(0)
    layer = nn.Linear(16, 8, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    method = gs.train.TopKAST(layer, optimizer, 0.75, backward=0.5, refresh=3)
    (one,) = method.layers
    x, masks, moved = torch.randn(6, 16), [one.mask.clone()], []
    for _ in range(6):
        before = one.extra["dense"].clone()
        layer(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
        moved.append(one.extra["dense"] != before)
        masks.append(one.mask.clone())
    for start in (0, 3):
        assert torch.equal(masks[start], masks[start + 1]) and torch.equal(masks[start], masks[start + 2])
        assert torch.equal(moved[start], moved[start + 1]) and torch.equal(moved[start], moved[start + 2])
        assert int(moved[start].sum()) == 64
    assert not torch.equal(masks[2], masks[3]) and torch.equal(
        masks[6], gs.Unstructured(0.75).select(one.extra["dense"].abs())
    )
    with pytest.raises(ValueError, match="refresh=0 must be a number of steps"):
        gs.train.TopKAST(nn.Linear(4, 4), optimizer, 0.75, refresh=0)


def test_a_run_with_refresh_resumes_exactly():
    def run(steps, state=None):
        torch.manual_seed(0)
        layer = nn.Linear(16, 8)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9)
        method = gs.train.TopKAST(layer, optimizer, 0.75, refresh=3)
        if state is not None:
            layer.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            method.load_state_dict(state[2])
        for number in range(method.steps, steps):
            x = torch.randn(6, 16, generator=torch.Generator().manual_seed(number))
            layer(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            method.step()
        return copy.deepcopy((layer.state_dict(), optimizer.state_dict(), method.state_dict()))

    whole, resumed = run(8), run(8, run(4))
    assert torch.equal(whole[0]["weight"], resumed[0]["weight"])
    assert torch.equal(whole[2]["extra"]["weight"]["dense"], resumed[2]["extra"]["weight"]["dense"])
