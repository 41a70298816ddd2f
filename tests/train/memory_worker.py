"""Prints the peak of resident memory of four steps, in MB above the start of each; every second one has an update."""

import sys
from pathlib import Path

import torch
from torch import nn

import gossamer as gs

WIDTH = 1024


def resident(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def main(kind: str, layers: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    options = {"distribution": "uniform", "every": 2, "until": 100, "format": gs.formats.PackedCSR()}
    method = getattr(gs.train, kind)(model, optimizer, 0.95, **options)
    x = torch.randn(16, WIDTH)
    for _ in range(4):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        start = resident("VmRSS:")
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        method.step()
        print(resident("VmHWM:") - start)
    assert method.log()["updates"] == 2


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
