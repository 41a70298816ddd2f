"""Streaming: what save and load need beyond the model is one tensor, not a second model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import contextlib, json, sys
from collections.abc import Mapping
import torch, gossamer as gs
from torch import nn

torch.set_num_threads(1)
MB, COUNT, SIZE = 1 << 20, 16, 16          # 16 tensors of 16 MB: 256 MB
path, out = sys.argv[1], {}

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))

@contextlib.contextmanager
def stage(name):
    with open("/proc/self/clear_refs", "w") as file: file.write("5")      # the peak is what is used now
    before = status("VmRSS")
    yield
    out[name] = status("VmHWM") - before

class Made(Mapping):                       # a model larger than we want to hold, made when asked for
    def __iter__(self): return iter(f"{i}.weight" for i in range(COUNT))
    def __len__(self): return COUNT
    def __getitem__(self, name): return torch.full((SIZE * MB // 4 // 1024, 1024), float(name.split(".")[0]))

class Copied(Mapping):                     # from file to file, sparse on the way
    def __init__(self, file): self.file = file
    def __iter__(self): return iter(list(self.file)[:4])
    def __len__(self): return 4
    def __getitem__(self, name): return gs.sparsify(self.file[name], gs.Threshold(7.5), format=gs.Masked())

with stage("save of a mapping"):
    gs.save(Made(), path)
with stage("reading it through"), gs.io.File(path) as file:
    for name in file: file[name]
with stage("file to file, sparsified"), gs.io.File(path) as file:
    gs.save(Copied(file), path + ".masked")
with stage("reading masked ones"), gs.io.File(path + ".masked") as file:
    for name in file: file[name]
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(1024, SIZE * MB // 4 // 1024, bias=False) for _ in range(COUNT)))
with stage("load"):
    gs.load(model, path)
with stage("save of a model"):
    gs.save(model, path)
with stage("load into a model"):
    gs.load(model, path)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_peak_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back at once, and counts no more
    command = [sys.executable, "-c", WORKER, str(tmp_path / "model.safetensors")]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    megabytes = json.loads(result.stdout)
    print(megabytes)
    # 16 MB a tensor, 256 MB in all: a second copy of the model would be 256
    assert 16 < megabytes["save of a mapping"] < 48
    assert 16 < megabytes["reading it through"] < 48
    assert megabytes["reading masked ones"] < 80
    assert 200 < megabytes["load"] < 256 + 48
    assert megabytes["save of a model"] < 24
    assert megabytes["load into a model"] < 48
