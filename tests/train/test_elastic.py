"""A rank that dies leaves a checkpoint from which torchrun's next try goes on, to the same bits."""

from pathlib import Path

import pytest
import torch

from tests.train.test_fsdp import torchrun

WORKER = Path(__file__).with_name("elastic_worker.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_dead_rank_is_no_loss(kind, tmp_path):
    found = []
    for name, die_at in (("straight", -1), ("killed", 7)):
        folder = tmp_path / name
        folder.mkdir()
        run = torchrun(WORKER, kind, folder, die_at, restarts=1)
        assert run.returncode == 0, run.stdout + run.stderr
        found.append(torch.load(folder / f"{kind}.out", weights_only=True))
    assert found[1]["lives"] == 1
    assert torch.equal(found[0]["weights"], found[1]["weights"])
