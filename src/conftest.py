"""Examples in docstrings may write files and draw random numbers: each has a folder and a seed of its own."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def folder_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, and from the same random numbers in every run."""
    monkeypatch.chdir(tmp_path)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
