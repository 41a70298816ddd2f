"""gs.serve.load: files that are none of ours, and machines that can't run them. tests/models/deploy loads real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gossamer as gs
from gossamer.models import serve


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gs.serve.load(tmp_path / "none.pt2")
    torch.save({"a": 1}, tmp_path / "other.pt2")
    (tmp_path / "bytes.pt2").write_bytes(b"12345")
    for name in ("other.pt2", "bytes.pt2"):
        with pytest.raises(ValueError, match=r"not written by gs.deploy, or is damaged"):
            gs.serve.load(tmp_path / name)


def test_a_processor_with_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    about = {"processor": [*serve.processor(), "avx1024"], "kernels": [], "inputs": [], "keywords": []}
    monkeypatch.setattr(serve, "_about", lambda path: json.loads(json.dumps(about)))
    with pytest.raises(RuntimeError, match="compiled for a processor with avx1024: deploy it on this machine"):
        gs.serve.load(path)


def test_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    about = {"processor": [], "kernels": ["int8_linear"], "inputs": [], "keywords": []}
    monkeypatch.setattr(serve, "_about", lambda path: about)
    monkeypatch.setattr(serve.native, "load", lambda: False)
    with pytest.raises(RuntimeError, match="needs the kernels of gossamer"):
        gs.serve.load(path)
