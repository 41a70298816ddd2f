"""Examples in docstrings may write files: each runs in a folder of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)
