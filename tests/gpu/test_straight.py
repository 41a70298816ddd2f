"""Straight-through methods on a GPU choose the masks of a model in few launches."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.kernels.choosing import Chooser, Chosen
from gossamer.kernels.largest import Wanted
from gossamer.patterns._rank import keep_top
from tests.kernels import test_shared_columns as shared
from tests.kernels.test_choosing import TYPES, matrices

pytestmark = pytest.mark.gpu


def test_choices_are_those_of_the_pattern():
    for dtype in TYPES:
        given = [Chosen(*(part.cuda() for part in one)) for _ in range(20) for one in matrices(dtype, 4)]
        chooser = Chooser(gs.NM(2, 4))
        versions = [one.mask._version for one in given]
        assert all(one.fits(4) for one in given) and not given[1].fits(3) and not given[1].fits(8)
        chooser(given)
        for one, version in zip(given, versions, strict=True):
            mask = gs.NM(2, 4).select(one.dense.abs().float())
            assert torch.equal(one.mask, mask) and torch.equal(one.sparse, torch.where(mask, one.dense, 0))
            assert one.mask._version > version
        assert not chooser.found_nan()
        given[3].dense[0, 0] = torch.nan
        chooser(given)
        assert chooser.found_nan() and not chooser.found_nan()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("v", "m"), [("all", 8), (64, 8), (5, 6), ("all", 16), (100, 13), ("all", 32)], ids=str)
def test_shared_columns_are_those_of_the_pattern(dtype, v, m):
    shapes = [(1, 1), (512, 4), (2050, 2), (65, 7), (3, 33)]
    for small in (True, False):
        given = [Chosen(*(part.cuda() for part in one)) for one in shared.matrices(dtype, m, shapes, small=small)]
        chooser = Chooser.of(gs.VNM(v, 2, m))
        assert all(chooser.takes(one) for one in given)
        chooser(given)
        again = [one.mask.clone() for one in given]
        chooser(given)
        for one, before in zip(given, again, strict=True):
            mask, dense = shared.as_the_pattern(one.dense, v, m), one.dense.abs().double()
            assert torch.equal(one.mask, before) and torch.equal(one.sparse, torch.where(one.mask, one.dense, 0))
            if small:
                assert torch.equal(one.mask, mask)
            best, mine = dense[mask].sum(), dense[one.mask].sum()
            assert (best - mine).abs() <= 2 * len(dense) * torch.finfo(
                torch.promote_types(dtype, torch.float32)
            ).eps * best
        assert not chooser.found_nan()
        given[2].dense[7, 3] = torch.nan
        chooser(given)
        assert chooser.found_nan() and not chooser.found_nan()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rounded", [False, True])
def test_the_largest_are_those_of_torch(dtype, rounded):
    shapes = [(1, 1), (2048, 512), (300, 77), (0, 5), *[(64, 70 + i) for i in range(40)], (5000, 3000)]
    given, wanted = [], []
    for shape in shapes:
        dense = torch.randn(shape, device="cuda")
        dense = (dense.mul(50).round() if rounded else dense).to(dtype)
        given.append(Chosen(dense, torch.full_like(dense, 7.0), torch.zeros(shape, dtype=torch.bool, device="cuda")))
        n = dense.numel()
        wanted.append(Wanted(n // 10, n // 3, torch.zeros(shape, dtype=torch.bool, device="cuda")))
    chooser = Chooser(gs.Unstructured(0.0))
    assert all(chooser.takes(one) for one in given)
    for _ in range(2):
        chooser(given, wanted)
        for one, number in zip(given, wanted, strict=True):
            scores = one.dense.abs() if dtype is torch.float64 else one.dense.abs().float()
            assert torch.equal(one.mask, keep_top(scores, number.first))
            assert torch.equal(one.sparse, torch.where(one.mask, one.dense, 0))
            assert torch.equal(number.wider, keep_top(scores, number.second))
            number.wider.zero_()
        chooser.masks([one.dense for one in given], wanted)
        for one, number in zip(given, wanted, strict=True):
            scores = one.dense.abs() if dtype is torch.float64 else one.dense.abs().float()
            assert torch.equal(number.wider, keep_top(scores, number.second))
    assert not chooser.found_nan()
    given[1].dense[2000, 500] = torch.nan
    chooser(given, wanted)
    assert chooser.found_nan() and not chooser.found_nan()


@pytest.mark.parametrize("pattern", ["2:4", "all:2:8", "16:2:8", "75%"])
@pytest.mark.parametrize("options", [{}, {"schedule": "decay", "until": 4}, {"refresh": 2}], ids=str)
def test_a_training_is_that_of_a_cpu(pattern, options):
    check_training("SRSTE", pattern, decay_out=0.01, **options)


@pytest.mark.parametrize("options", [{}, {"until": 3}, {"refresh": 2}], ids=str)
def test_a_training_by_top_kast_is_that_of_a_cpu(options):
    check_training("TopKAST", "75%", **options)


@pytest.mark.parametrize("options", [{"schedule": "linear"}, {"opening": 3.0}], ids=str)
def test_gates_reach_their_sparsity(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.HardConcrete(model, optimizer, 0.9, until=60, **options)
    for _ in range(62):
        model(torch.randn(64, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    assert sum(layer.kept for layer in method.layers) == 1480


def check_training(name, pattern, **options):
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).double().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        method = getattr(gs.train, name)(model, optimizer, pattern, **options)
        x = torch.randn(16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
        for _ in range(6):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            method.step()
        weights.append([layer.extra["dense"].cpu() for layer in method.layers] + [m.mask.cpu() for m in method.layers])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)


def test_nan_is_noticed_in_the_next_step():
    model = nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gs.train.STE(model, optimizer, "2:4")
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    model.weight.grad[0, 0] = torch.nan
    optimizer.step()
    with pytest.raises(ValueError, match="diverged"):
        optimizer.step()
