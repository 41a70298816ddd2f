"""A GPU of compute capability 9.0 on a CPU, by tests/native/emulator.py."""

from gossamer.kernels import gpu
from gossamer.kernels.vnm import products
from gossamer.native.cuda import calls
from tests.native import emulator


def emulate(monkeypatch, module, processors=2):
    """Let a module's operators run in the emulator."""
    monkeypatch.setattr(products, "function", emulator.function)
    monkeypatch.setattr(products, "_ready", {})
    monkeypatch.setattr(calls, "tensor_map", emulator.tensor_map)
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(gpu, "processors", lambda device: processors)
    monkeypatch.setattr(module, "usable", lambda: True)
    if hasattr(module, "KINDS"):
        monkeypatch.setattr(module.KINDS, "_calls", {})
