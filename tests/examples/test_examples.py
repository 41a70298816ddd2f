"""The examples run, and their three ways agree (they assert it themselves)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["gcn", "autoencoder", "sparse_attention", "gat", "sparse_convolution"])
def test_quick(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--quick"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gossamer" in done.stdout and "dense" in done.stdout and "ms*" in done.stdout
    assert "FallbackWarning" not in done.stderr
