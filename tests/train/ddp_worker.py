"""One rank of tests/train/test_distributed.py."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer as gs


def main(mode: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)  # every rank starts differently, and has its own data
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kinds = {
        "srste": lambda: gs.train.SRSTE(model, optimizer, "2:4"),
        "mean": lambda: gs.train.RigL(model, optimizer, pattern="2:4", every=4, until=20, growth=3, seed=rank),
        "set": lambda: gs.train.SET(model, optimizer, 0.8, every=2, until=20, seed=rank),
    }
    default = lambda: gs.train.SRigL(model, optimizer, 0.8, every=2, until=20, seed=rank)
    method = kinds.get(mode, default)()
    ddp = DistributedDataParallel(model)
    if mode == "values":
        ddp.register_comm_hook(None, gs.nn.reduce_values)
    first, seen = model[0].weight.mask(), []
    update = method.update
    if method.needs_gradient:
        method.update = lambda layer: (seen.append(layer.grad.clone()), update(layer))[1]
    for _ in range(7):
        optimizer.zero_grad()
        for part in range(2):  # two micro-batches, sent once
            ddp.require_backward_grad_sync = part == 1
            ddp(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        method.step()
    parts = [weight.dense() for weight in gs.nn.all_weights(model).values()]
    parts += [layer.mask.float() for layer in method.layers] + seen
    mine = torch.cat([p.reshape(-1) for p in parts])
    ranks = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(ranks, mine)
    assert torch.equal(*ranks), "the ranks differ"
    assert not torch.equal(first, model[0].weight.mask())
    assert not method.needs_gradient or seen
    print(mode, "identical")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for mode in sys.argv[1:]:
        main(mode)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears them down: nothing is left to lose here
