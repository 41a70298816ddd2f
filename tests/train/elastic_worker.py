"""A job under torchrun that checkpoints at every third step; in its first life one rank dies. See test_elastic.py."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import gossamer as gs
from tests.train.fsdp_worker import network

STEPS = 12


def states(model, optimizer, method):
    """Whole, on the first rank; of a sharded model too."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=whole), strict=True)) | {
        "method": method.state_dict()
    }


def main(kind: str, folder: Path, die_at: int) -> None:
    rank, lives = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = network(sharded=kind == "fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    method = gs.train.SRigL(model, optimizer, 0.8, every=2, until=20)
    checkpoint = folder / f"{kind}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if kind == "fsdp":
            options = StateDictOptions(full_state_dict=True)
            parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
            set_state_dict(model, optimizer, **parts, options=options)
        else:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        method.load_state_dict(state["method"])
    trained = model if kind == "fsdp" else DistributedDataParallel(model)
    for step in range(method.steps, STEPS):
        if step == die_at and lives == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(2 * step + rank)
        optimizer.zero_grad()
        trained(torch.randn(8, 30)).square().mean().backward()
        optimizer.step()
        method.step()
        if method.steps % 3 == 0:
            everything = {"model": model, "optimizer": optimizer, "method": method}
            plain = {name: part.state_dict() for name, part in everything.items()} if kind == "ddp" else None
            state = plain or states(model, optimizer, method)
            if rank == 0:
                torch.save(state, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
    parts = [layer.weight.reshape(-1) for layer in method.layers] + [
        layer.mask.reshape(-1).float() for layer in method.layers
    ]
    if rank == 0:
        torch.save({"weights": torch.cat(parts), "lives": lives}, folder / f"{kind}.out")


def join() -> None:
    """Join under keys of this life alone: torch 2.13 lets gloo read the addresses that ranks of the last life left."""
    store, rank, world = next(dist.rendezvous("env://"))
    life = dist.PrefixStore(f"life-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=life, rank=rank, world_size=world)


if __name__ == "__main__":
    join()
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
