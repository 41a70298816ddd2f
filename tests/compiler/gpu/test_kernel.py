"""Kernels for the GPU: one for each program, built once for each device."""

import torch

from gossamer.compiler.gpu import kernel
from gossamer.compiler.gpu.kernel import Kernel, fits, on_gpu
from gossamer.compiler.gpu.mapping import THREADS, Mapping
from gossamer.compiler.gpu.softmax import nest


def test_a_kernel_is_built_once_for_each_device(monkeypatch):
    built, launched = [], []

    def generated(text, name, device, parameters):
        built.append((name, device, parameters))
        return lambda *arguments: launched.append(arguments)

    monkeypatch.setattr(kernel, "generated", generated)
    made = Kernel(nest("softmax", "float", ("int",)), Mapping("sum", "A1.q", 8), False)
    for device in (0, 0, 1):
        made.launch(device, (2, 1, 1), [1, 2, 3, 4, 5])
    assert built == [("nest", 0, "P P P q q"), ("nest", 1, "P P P q q")]
    assert launched == [((2, 1, 1), THREADS, 1, 2, 3, 4, 5)] * 3
    assert made.loops.startswith("# softmax of a row") and "__global__" in made.source


def test_where_kernels_run():
    assert not on_gpu(torch.device("cpu")) and not on_gpu(torch.device("meta"))
    assert fits((2**31 - 1, 65535, 65535)) and not fits((1, 65536, 1)) and not fits((1, 1, 65536))
