"""A training job that checkpoints at every third step, and may be killed: see test_resume.py."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs

METHODS = {
    "SRigL": lambda m, o: gs.train.SRigL(m, o, 0.8, every=2, until=20),
    "RigL": lambda m, o: gs.train.RigL(m, o, pattern="2:4", every=4, until=20, growth="mean of 3 steps"),
    "SET": lambda m, o: gs.train.SET(m, o, 0.8, every=2, until=20),
    "GMP": lambda m, o: gs.train.GMP(m, o, 0.8, every=2, until=8),
    "ACDC": lambda m, o: gs.train.ACDC(m, o, 0.8, every=3, start=2, until=10),
    "SRSTE": lambda m, o: gs.train.SRSTE(m, o, "2:4"),
    "HardConcrete": lambda m, o: gs.train.HardConcrete(m, o, 0.8, until=8),
}


def run(kind: str, checkpoint: Path, kill_at: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = METHODS[kind](model, optimizer)
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        method.load_state_dict(state["method"])
        first = method.steps
    for step in range(first, 12):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(step)
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,))).backward()
        optimizer.step()
        method.step()
        if method.steps % 3 == 0:
            everything = {"model": model, "optimizer": optimizer, "method": method}
            torch.save({k: v.state_dict() for k, v in everything.items()}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
    parts = [weight.dense() for weight in gs.nn.all_weights(model).values()]
    return torch.cat([p.reshape(-1) for p in parts] + [torch.tensor([float(method.log()["kept"])])])


if __name__ == "__main__":
    out, folder, kill_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.save({k: run(k, folder / k, kill_at) for k in METHODS}, out)
