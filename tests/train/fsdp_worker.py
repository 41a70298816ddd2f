"""One rank of tests/train/test_fsdp.py: FSDP2 on two ranks must train as one process does on both batches."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gossamer as gs

METHODS = {
    "SRigL": lambda m, o: gs.train.SRigL(m, o, 0.8, every=2, until=20, gamma=0.5, min_salient=1),
    "RigL": lambda m, o: gs.train.RigL(m, o, 0.8, every=2, until=20),
    "RigL, mean": lambda m, o: gs.train.RigL(m, o, pattern="fan-in 80%", every=4, until=20, growth=3),
    "SET": lambda m, o: gs.train.SET(m, o, 0.8, every=2, until=20),
    "GMP": lambda m, o: gs.train.GMP(m, o, 0.8, every=2, until=6),
    "GMP, V:N:M": lambda m, o: gs.train.GMP(m, o, pattern="all:2:8", every=2, until=6),
    "ACDC": lambda m, o: gs.train.ACDC(m, o, "2:4", every=2, start=2, until=6),
    "Static": lambda m, o: gs.train.Static(m, o, 0.8),
    "STE": lambda m, o: gs.train.STE(m, o, "50%"),
    "SRSTE": lambda m, o: gs.train.SRSTE(m, o, "50%", decay_out=0.1),
    "TopKAST": lambda m, o: gs.train.TopKAST(m, o, 0.8, backward=0.5),
    "Movement": lambda m, o: gs.train.Movement(m, o, 0.8, until=5),
    "HardConcrete": lambda m, o: gs.train.HardConcrete(m, o, 0.8, until=5),
}


def network(sharded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 45), nn.ReLU(), nn.Linear(45, 16), nn.ReLU(), nn.Linear(16, 5))  # 45: uneven
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for layer in model[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def train(kind, sharded, batches):
    model = network(sharded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    method = METHODS[kind](model, optimizer)
    decided, update = [], method.update
    method.update = lambda layer: decided.append(update(layer)) or decided[-1]
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        method.step()
    return model, optimizer, method, decided


def main(kind: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    both = torch.randn(7, 2, 8, 30)
    model, optimizer, method, decided = train(kind, True, both[:, rank])
    expected, _, other, _ = train(kind, False, both.flatten(1, 2))
    for have, want in zip(model.parameters(), expected.parameters(), strict=True):
        assert isinstance(have, DTensor)
        want = want.detach()
        torch.testing.assert_close(have.detach().full_tensor(), want, rtol=1e-4, atol=1e-6)
    for mine, its in zip(method.layers, other.layers, strict=True):
        assert torch.equal(mine.mask, its.mask), mine.name
        assert not mine.weight[~mine.mask].any()
        if not isinstance(method, gs.train.straight.Straight):  # which trains all weights
            state = optimizer.state[mine.parameter]
            assert not mine.matrix(state["exp_avg"].full_tensor())[~mine.mask].any()
    assert method.log()["layers"] == other.log()["layers"]
    mine = torch.cat([mask.reshape(-1).float() for mask in decided] or [torch.zeros(1)])
    ranks = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(ranks, mine)
    assert torch.equal(*ranks), "the ranks decided differently"
    print(f"{kind} identical\n", end="")  # one write: both ranks share a pipe


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for kind in sys.argv[1:]:
        main(kind)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears them down: nothing is left to lose here
