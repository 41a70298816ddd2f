"""DDP with two processes: topology is decided on reduced gradients and is the same on every rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer as gs
from tests.models.test_distributed import free_port

WORKER = Path(__file__).with_name("ddp_worker.py")


MODES = ["plain", "values", "set", "srste", "mean"]


@pytest.mark.timeout(120)
def test_two_ranks_have_one_topology():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *MODES],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=110)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert outputs[0].count("identical") == len(MODES)


def test_the_method_comes_before_ddp():
    model = object.__new__(nn.parallel.DistributedDataParallel)
    with pytest.raises(ValueError, match="make the method first, then wrap the model"):
        gs.train.Static(model, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
