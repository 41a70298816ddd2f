"""Weights that FSDP2 has sharded, by a mesh of one process; several are tested in test_fsdp.py."""

import pytest
import torch

from gossamer.train import shards


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_plain_tensors_are_not_sharded():
    assert not shards.is_sharded(torch.ones(2)) and not shards.is_sharded(torch.nn.Parameter(torch.ones(2)))


def test_there_and_back(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    full = torch.arange(12.0).view(4, 3)
    weight = distribute_tensor(full.clone(), mesh, [Shard(0)])
    assert shards.is_sharded(weight) and torch.equal(shards.whole(weight), full)
    assert torch.equal(shards.rows_of(full + 1, weight), full + 1)
    assert shards.shard_like(full, weight).placements == weight.placements
    shards.local(weight).mul_(2)
    assert torch.equal(shards.whole(weight), 2 * full)


def test_masks_and_values(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    full = torch.arange(1.0, 13).view(4, 3)
    weight = distribute_tensor(full.clone(), mesh, [Shard(0)])
    mask = full % 2 == 0
    shards.become_rows(weight, None, mask)
    assert torch.equal(shards.whole(weight), full * mask) and torch.equal(shards.whole_mask(weight), mask)
    shards.become_rows(weight, -full, ~mask)
    assert torch.equal(shards.whole(weight), -full * ~mask)
    state = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    shards.clear(state, weight)
    assert torch.equal(shards.whole(state), (~mask).float())
