"""One rank of tests/models/test_distributed.py: trains a sparse model under DDP and compares the ranks."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer as gs


def model_of(mode: str) -> nn.Module:
    """A model that starts differently on every rank."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    if "grad" not in mode and mode != "resparsify":
        return gs.sparsify_(model, {"0": "80%", "2": "90%", "4": None}, format=gs.CSR())
    sb = gs.SparsityBuilder(model)
    every = {"every": 2} if mode == "resparsify" else {}
    sb.set_weight(
        "0.weight", initial_sparsifier="80%", out_format=gs.Masked() if "masked" in mode else gs.CSR(), **every
    )
    if mode != "resparsify":
        sb.set_weight_grad("0.weight", external_sparsifier=gs.sparsifiers.ScalarFraction(0.9), out_format=gs.COO())
    return sb.get_sparse_model()


def flat(model: nn.Module) -> torch.Tensor:
    """All weights in a row."""
    parts = (weight.dense() for weight in gs.nn.all_weights(model).values())
    return torch.cat([p.reshape(-1) for p in parts])


def main(mode: str) -> None:
    """Train, gather, compare."""
    dist.init_process_group("gloo")
    model = gs.nn.synchronize_(model_of(mode))
    ddp = DistributedDataParallel(model)
    sent: list[int] = []
    if mode == "values":
        reduce = dist.all_reduce
        dist.all_reduce = lambda t, **kwargs: (sent.append(t.numel()), reduce(t, **kwargs))[1]
        ddp.register_comm_hook(None, gs.nn.reduce_values)
    if mode == "in order":
        ddp.register_comm_hook(None, gs.nn.reduce_in_order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())  # every rank has its own data
    for _ in range(6):
        optimizer.zero_grad()
        ddp(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    mine = flat(model)
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    assert torch.equal(all_ranks[0], all_ranks[1]), "the ranks differ"
    assert model[0].weight.sparsity > 0.79
    if mode == "values":
        kept = sum(int(weight.mask().sum()) for weight in gs.nn.all_weights(model).values())
        assert sum(sent) == 6 * kept, (sum(sent), kept)
    print("identical", flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that tears them down: nothing is left to lose here


if __name__ == "__main__":
    main(sys.argv[1])
