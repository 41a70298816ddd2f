"""FSDP2 under torchrun: topology is decided on reduced gradients, and training is that of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.test_distributed import free_port
from tests.train.fsdp_worker import METHODS

WORKER = Path(__file__).with_name("fsdp_worker.py")


def torchrun(*arguments, restarts=0, timeout=200):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"--max-restarts={restarts}"]
    address = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [*launcher, *address, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_ranks_train_as_one_process():
    found = torchrun(WORKER, *METHODS, restarts=2)  # on a busy machine gloo may need another try
    assert found.returncode == 0, found.stdout + found.stderr
    assert all(found.stdout.count(f"{kind} identical") >= 2 for kind in METHODS)
