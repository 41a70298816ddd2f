"""One process alone: nothing is sent; several are tested in test_distributed.py."""

import torch
from torch import nn

import gossamer as gs
from gossamer.train.layers import find_layers
from gossamer.train.ranks import Ranks


def test_alone():
    ranks, rng = Ranks(), torch.Generator().manual_seed(3)
    grad, state = torch.randn(3), rng.get_state()
    assert ranks.alone and ranks.mean(grad) is grad
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    ranks.agree(find_layers(model, None, (), False, False)[0], rng)
    assert torch.equal(rng.get_state(), state) and torch.equal(model.weight, before)


def test_a_group_of_one_is_alone(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert Ranks().alone
        model = gs.sparsify_(nn.Linear(8, 8), "50%")
        assert Ranks().mean(model.weight.to_dense()).shape == (8, 8)
    finally:
        torch.distributed.destroy_process_group()
