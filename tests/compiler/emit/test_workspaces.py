"""Workspaces: a call for which there is no memory raises MemoryError, and the next one is right."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.emit import workspaces
from gossamer.compiler.run import design, kernel
from gossamer.compiler.run.cache import DESIGNS, PLANS

NONE = "#define malloc(n) ((void *)0)\n#define calloc(n, size) ((void *)0)\n"
FEW = "#define malloc(n) ((n) > 9000 ? (void *)0 : (malloc)(n))\n"  # enough for a new table, not for one that grows
SIZES = {"dense": (1 << 16, 1 << 22), "wide": (1, 1 << 22), "hash": (1, 2)}


@pytest.mark.parametrize("kind, memory", [("dense", NONE), ("wide", NONE), ("hash", NONE), ("hash", FEW)])
def test_without_memory(kind, memory, monkeypatch):
    a = gs.from_dense(torch.rand(5, 30), gs.CSR())
    b = gs.from_dense(torch.rand(30, 3000) * (torch.rand(30, 3000) < 0.5), gs.CSR())
    want = a.to_dense() @ b.to_dense()
    monkeypatch.setattr(design, "_SMALL", SIZES[kind][0])
    monkeypatch.setattr(design, "_LARGE", SIZES[kind][1])
    with monkeypatch.context() as scarce:
        scarce.setattr(kernel, "_KERNELS", {})
        text = workspaces.SOURCES[kind].replace(workspaces.MEMORY, workspaces.MEMORY + memory)
        scarce.setitem(workspaces.SOURCES, kind, text)
        PLANS.clear()
        DESIGNS.clear()
        with pytest.raises(MemoryError, match="workspace over"):
            gs.einsum("ik,kj->ij", a, b)
    PLANS.clear()
    DESIGNS.clear()
    assert torch.allclose(gs.einsum("ik,kj->ij", a, b).to_dense(), want, atol=30 * 30 * 2**-23)
    PLANS.clear()
    DESIGNS.clear()
