"""From which density on a product is torch's."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run import crossover
from gossamer.compiler.run.crossover import dense_from, dense_wins
from gossamer.compiler.run.runtime import available
from gossamer.ops.plans_of import plan_of

compiled = pytest.mark.skipif(not available(), reason="no C compiler")


def test_settings_nest_and_are_put_back():
    before = crossover.setting()
    with dense_from(0.25):
        assert crossover.setting() == 0.25
        with dense_from(None):
            assert crossover.setting() is None
        assert crossover.setting() == 0.25
    assert crossover.setting() == before
    with pytest.raises(KeyError), dense_from(0.1):
        raise KeyError
    assert crossover.setting() == before


@pytest.mark.parametrize("bad", [-0.1, float("nan"), "much", [1]])
def test_what_is_no_density(bad):
    before = crossover.setting()
    with pytest.raises(ValueError, match="must be a number from 0, or None for never"):
        dense_from(bad)
    assert crossover.setting() == before


def plan(text, *tensors):
    return plan_of(text, tensors, None)


HALF = torch.tensor([[1.0, 0], [0, 2.0]])


@compiled
@pytest.mark.parametrize("density, wins", [(0, True), (0.4, True), (0.6, False), (None, False)])
def test_a_product_at_half_density(density, wins):
    found = plan("ik,kj->ij", gs.from_dense(HALF, gs.CSR()), torch.ones(2, 3))
    with dense_from(density):
        assert dense_wins(found) is wins


@compiled
@pytest.mark.parametrize("text, other", [("ij,ij->ij", (2, 2)), ("ij,j->i", (2,)), ("max: ik,kj->ij", (2, 3))])
def test_only_products_of_matrices_are_left_to_torch(text, other):
    found = plan(text, gs.from_dense(HALF, gs.CSR()), torch.ones(other))
    with dense_from(0):
        assert not dense_wins(found)


@compiled
def test_empty_products_are_not():
    found = plan("ik,kj->ij", gs.from_dense(torch.zeros(0, 2), gs.CSR()), torch.ones(2, 3))
    with dense_from(0):
        assert not dense_wins(found)


@compiled
def test_the_result_is_the_same():
    a, b = gs.from_dense(HALF, gs.CSR()), torch.arange(6.0).view(2, 3)
    for density in (0, None):
        with dense_from(density):
            assert torch.equal(gs.einsum("ik,kj->ij", a, b), HALF @ b)
