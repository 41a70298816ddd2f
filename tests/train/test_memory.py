"""Truly sparse training: an update makes no more than one layer dense at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.memory_worker import WIDTH

WORKER = Path(__file__).with_name("memory_worker.py")
DENSE = WIDTH * WIDTH * 4 / 2**20  # MB of one dense layer


def peak(kind, layers):
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # freed memory goes back to the system at once
    command = [sys.executable, str(WORKER), kind, str(layers)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return float(found.stdout.split()[-1])


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks are read from Linux's /proc")
def test_an_update_makes_one_layer_dense_at_a_time():
    few, many = peak("SRigL", 4), peak("SRigL", 16)
    assert few > 2 * DENSE  # one layer's gradient, weight, mask: so the measure works
    # Kept weights, gradients and momenta, old and new, are 3.8 dense layers for twelve; dense ones would be 12 or more.
    assert many - few < 6 * DENSE, f"12 layers more take {(many - few) / DENSE:.1f} dense layers more"
