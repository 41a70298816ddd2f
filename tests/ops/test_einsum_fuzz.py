"""300 cases of benchmarks/fuzz.py, with memory that is never zero by chance; some with every address checked."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import fuzz

SHARE = 6  # cases in a row that differ in letters, sizes and values alone, and so share kernels


@pytest.mark.parametrize("part", range(6))
def test_random_expressions(part):
    counts = Counter()
    assert fuzz.run(50 * part, 50 * (part + 1), counts, share=SHARE) == [] and counts == {"right": 50}


def test_random_expressions_with_every_address_checked():
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout
    if not Path(found.strip()).is_absolute():
        pytest.skip("gcc has no address sanitizer here")
    counts = Counter()
    assert fuzz.run(10_000, 10_030, counts, asan=True) == [] and counts == {"right": 30}
