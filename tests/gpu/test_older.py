"""GPUs before Hopper take the kernels that they have: the tests of few tokens, bitmaps and formats, as on these."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
WHICH = {
    "test_vnm.py": "few_tokens or other_types or gradients or not_finite or (views and (all-4 or 64-8)) or replays",
    "test_small.py": "weight-only or bitmap",
    "test_quantized.py": "close_to and (int4 or weights or dense)",
    "test_pack.py": "same or example",
    "test_decode.py": "exact",
    "test_attention.py": "one_kernel",
}


@pytest.mark.parametrize("capability", ["8.0", "8.9"])
@pytest.mark.parametrize("file", WHICH)
def test_as_on_an_older_gpu(file, capability, tmp_path):
    plugins = ["-p", "tests.gpu.older", "-p", "no:xdist", "-p", "no:benchmark"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, f"tests/gpu/{file}", "-k", WHICH[file]]
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = {**given, "GOSSAMER_TEST_CAPABILITY": capability, "GOSSAMER_CACHE": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False, timeout=900)
    assert not done.returncode and re.search(r"\d+ passed", done.stdout), done.stdout[-3000:] + done.stderr[-2000:]
