"""Kill it at any step, start it again: the result has the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.resume_worker import METHODS, run

WORKER = Path(__file__).with_name("resume_worker.py")


def start(out, folder, kill_at):
    command = [sys.executable, str(WORKER), str(out), str(folder), str(kill_at)]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


@pytest.mark.timeout(120)
def test_a_killed_process_resumes_bit_identically(tmp_path):
    folder = tmp_path / "killed"
    folder.mkdir()
    killed = start(tmp_path / "out", folder, 7)
    assert killed.returncode == -signal.SIGKILL, killed.stderr  # in the first method, after step 7; saved at 6
    again = start(tmp_path / "out", folder, -1)
    assert again.returncode == 0, again.stderr
    name = next(iter(METHODS))
    found = torch.load(tmp_path / "out")[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    straight = run(name, tmp_path / "none", -1)
    torch.set_num_threads(threads)
    assert torch.equal(found, straight)


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_resumes_bit_identically(kind, tmp_path):
    straight = run(kind, tmp_path / "a", -1)
    stopped = tmp_path / "b"

    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    kill, os.kill = os.kill, stop
    try:
        with pytest.raises(StopError):
            run(kind, stopped, 8)
    finally:
        os.kill = kill
    assert torch.equal(run(kind, stopped, -1), straight)
