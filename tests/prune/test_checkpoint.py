import copy
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import gossamer as gs
from gossamer.prune.job import Job
from tests.prune.networks import batches, mlp


def test_resume_gives_the_same_bits(tmp_path, monkeypatch):
    dense, data = mlp(), batches()
    for method in ("sparsegpt", "obs"):
        whole = copy.deepcopy(dense)
        gs.prune.oneshot(whole, "2:4", data, method=method)
        folder, model, done = tmp_path / method, copy.deepcopy(dense), []
        real = Job._together

        def interrupted(self, team, gram, real=real, done=done):
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(team[0].name)
            return real(self, team, gram)

        monkeypatch.setattr(Job, "_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gs.prune.oneshot(model, "2:4", data, method=method, checkpoint=folder)
        monkeypatch.setattr(Job, "_together", real)
        # the interrupted model itself, and a fresh one: both go on
        for again in (model, copy.deepcopy(dense)):
            copied = tmp_path / f"{method}-{id(again)}"
            copied.mkdir()
            for file in folder.iterdir():
                (copied / file.name).write_bytes(file.read_bytes())
            report = gs.prune.oneshot(again, "2:4", data, method=method, checkpoint=copied)
            assert len(report.layers) == 3
            for name, want in whole.named_parameters():
                have = again.get_parameter(name)
                dense_of = lambda t: t.detach().to_dense() if isinstance(t, gs.SparseTensor) else t
                if method == "sparsegpt":
                    assert torch.equal(dense_of(have), dense_of(want))
                else:  # gradients of what is left are taken at the half-pruned model
                    assert have.shape == want.shape


def test_resume_after_kill(tmp_path):
    """A process that is killed in the middle leaves a folder from which another one goes on."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, time, torch, gossamer as gs\n"
        "from gossamer.prune import job as driver\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])\n"
        "data = [torch.randn(32, 16)]\n"
        "if sys.argv[1] == 'slow':\n"
        "    real = driver.Job._together\n"
        "    driver.Job._together = lambda *a: (time.sleep(0.3), real(*a))[1]\n"
        "gs.prune.oneshot(model, '2:4', data, checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)\n"
        "print(sum(float(layer.weight.detach().to_dense().double().abs().sum()) for layer in model))\n"
    )
    folder = tmp_path / "state"
    command = [sys.executable, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    victim = subprocess.Popen([*command, "slow", str(folder)], env=environment)
    page = folder / "progress.json"
    for _ in range(600):
        if page.exists() and len(json.loads(page.read_text())["done"]) >= 2:
            break
        time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert 2 <= len(json.loads(page.read_text())["done"]) < 6
    resumed = subprocess.run(
        [*command, "fast", str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    fresh = subprocess.run([*command, "fast"], env=environment, capture_output=True, text=True, check=True)
    assert resumed.stdout == fresh.stdout


def test_a_folder_of_another_run_is_refused(tmp_path):
    model, data = mlp(), batches()
    gs.prune.oneshot(copy.deepcopy(model), "2:4", data, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"another run.*method"):
        gs.prune.oneshot(copy.deepcopy(model), "2:4", data, method="wanda", checkpoint=tmp_path)
    (tmp_path / "progress.json").write_text(
        json.dumps({**json.loads((tmp_path / "progress.json").read_text()), "done": {}})
    )
    with pytest.raises(ValueError, match="another model"):
        gs.prune.oneshot(mlp(), "2:4", data, checkpoint=tmp_path)
