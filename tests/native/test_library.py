"""Building and loading: once, whole, and with a plain word when it can't be done."""

import logging
import os
import subprocess
import sys

import pytest

from gossamer import native
from gossamer.native.build import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def test_a_process_without_kernels_says_so_once_and_works(tmp_path):
    code = """
import logging, torch, gossamer as gs
logging.basicConfig()
w = gs.sparsify(torch.ones(4, 8), "50%", format=gs.formats.PackedCSR())
for tokens in (2, 1):
    print(torch.nn.functional.linear(torch.ones(tokens, 8), w).sum().item())
"""
    env = {**os.environ, "GOSSAMER_CACHE": str(tmp_path), "PATH": "", "CXX": ""}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert answer.stdout.split() == ["32.0", "16.0"], answer.stderr
    assert answer.stderr.count("no C++ compiler") == 1


def test_switched_off(monkeypatch):
    code = "from gossamer import native; print(native.load(), native.why_not(), native.isa())"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "GOSSAMER_NATIVE": "0"}, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "False GOSSAMER_NATIVE=0 None", answer.stderr


def test_isa_is_known():
    if native.load():
        assert native.isa() in ("avx512", "avx2", "baseline")
    else:
        logging.getLogger("gossamer").info(native.why_not())
