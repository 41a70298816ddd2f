"""Ranks that are killed: does a resumed job end with the same bits?

    python benchmarks/kill_ranks.py [--kills N] [--ranks N] [--seed N] [--reduce default|in_order] [--out FILE]

Jobs of four ranks (gloo, DDP) train a network by SRigL, and one of its layers by gradients that
``SparsityBuilder.set_weight_grad`` makes sparse. In each job one rank ends itself by SIGKILL at a random step; the job
is started again and goes on from its last checkpoint. Weights, masks and optimizer state are compared with those of a
job that nobody disturbed, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the line above

RESULT = HERE / "results" / "kill-ranks.json"
STEPS, SAVED = 24, 4  # steps of a job, and steps between two checkpoints


# -- one rank


def network() -> nn.Module:
    """Layers for SRigL, and one whose gradient is made sparse."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 45), nn.ReLU(), nn.Linear(45, 32), nn.ReLU(), nn.Linear(32, 8))
    builder = gs.SparsityBuilder(model, inplace=True)
    builder.set_weight_grad("4.weight", external_sparsifier="50%")
    return builder.get_sparse_model()


def train(folder: Path, kill: tuple[int, int] | None, reduce: str) -> None:
    """Train from the last checkpoint on; ``kill`` is the rank and the step at which it ends itself."""
    rank, path = dist.get_rank(), folder / "checkpoint.pt"
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    method = gs.train.SRigL(model, optimizer, 0.8, every=2, until=20, skip="4", min_salient=1, gamma=0.3)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "method": method}
    if path.exists():
        for name, state in torch.load(path, weights_only=True).items():
            parts[name].load_state_dict(state)
    ddp = DistributedDataParallel(model)
    if reduce == "in_order":
        ddp.register_comm_hook(None, gs.nn.reduce_in_order)
    for step in range(method.steps, STEPS):
        if kill == (rank, step):
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        ddp(torch.randn(8, 30)).square().mean().backward()
        optimizer.step()
        method.step()
        if method.steps % SAVED == 0 and rank == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, folder / "new.pt")
            os.replace(folder / "new.pt", path)
    (folder / f"digest-{rank}").write_text(digest(model, optimizer))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears them down


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return what distinguishes the bits of a model and of its optimizer."""
    found = hashlib.sha256()
    state = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values(), *(t for one in state.values() for t in one.values())]
    for tensor in tensors:
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# -- jobs


def free_port() -> int:
    """Return a port that nobody has now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def job(folder: Path, ranks: int, kill: tuple[int, int] | None, reduce: str) -> list[int]:
    """Start all ranks, wait for them, and return their exit codes; if one is killed the others are ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment["WORLD_SIZE"] = str(ranks)
    words = [] if kill is None else ["--kill", *map(str, kill)]
    command = [sys.executable, __file__, "--worker", str(folder), "--reduce", reduce, *words]
    quiet = None if kill is None else subprocess.DEVNULL  # the others complain that one is gone
    started = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=quiet) for rank in range(ranks)]
    if kill is not None:
        started[kill[0]].wait()
        for process in started:
            process.kill()
    return [process.wait() for process in started]


def digests(folder: Path, ranks: int) -> list[str]:
    """Return the digest that each rank has left."""
    return [(folder / f"digest-{rank}").read_text() for rank in range(ranks)]


def undisturbed(ranks: int, reduce: str) -> str:
    """Return the digest of a job that runs through; all ranks must agree on it."""
    with tempfile.TemporaryDirectory() as folder:
        assert not any(job(Path(folder), ranks, None, reduce))
        found = set(digests(Path(folder), ranks))
    if len(found) > 1:
        raise RuntimeError("the ranks of an undisturbed job differ")
    return found.pop()


def killed(ranks: int, rank: int, step: int, reduce: str) -> list[str]:
    """Return the digests of a job of which one rank was killed at a step, and that was started again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        codes = job(folder, ranks, (rank, step), reduce)
        assert codes[rank] == -signal.SIGKILL, codes
        assert not any(job(folder, ranks, None, reduce))
        return digests(folder, ranks)


def main() -> None:
    """Kill, resume and compare; print each job, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reduce", choices=["default", "in_order"], default="in_order")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        dist.init_process_group("gloo")
        train(options.worker, tuple(options.kill) if options.kill else None, options.reduce)
    rng, rows = random.Random(options.seed), []
    expected = undisturbed(options.ranks, options.reduce)
    for _ in range(options.kills):
        rank, step = rng.randrange(options.ranks), rng.randrange(1, STEPS)
        same = killed(options.ranks, rank, step, options.reduce) == [expected] * options.ranks
        rows.append({"rank": rank, "step": step, "identical": same})
        print(f"rank {rank} killed at step {step}: {'identical' if same else 'DIFFERENT'}", flush=True)
    if options.out:
        about = {"torch": torch.__version__, "ranks": options.ranks, "reduce": options.reduce}
        options.out.write_text(json.dumps(about | {"jobs": rows}, indent=1) + "\n")
    sys.exit(0 if all(row["identical"] for row in rows) else 1)


if __name__ == "__main__":
    main()
