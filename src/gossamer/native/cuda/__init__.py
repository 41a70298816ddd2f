"""CUDA kernels without a CUDA toolkit: compiled at first use by NVRTC, kept in the cache, launched through the driver.

- :mod:`~gossamer.native.cuda.compiler`: a source and its macros -> a cubin (NVRTC, or nvcc where there is none),
- :mod:`~gossamer.native.cuda.cache`: the same, once for each source, macros, architecture and compiler,
- :mod:`~gossamer.native.cuda.driver`: a cubin -> a function that can be launched on torch's current stream,
- :mod:`~gossamer.native.cuda.calls`: what a call of an operator launches; by Python, or without it (``launch.cpp``).

Nothing of this is touched before the first kernel is asked for, and nothing needs a header of CUDA.
"""

from gossamer.native.cuda import calls
from gossamer.native.cuda.cache import SOURCES, cubin
from gossamer.native.cuda.compiler import CompileError, compiler
from gossamer.native.cuda.driver import CudaError, Function, function, generated, tensor_map, usable

__all__ = [
    "SOURCES",
    "CompileError",
    "CudaError",
    "Function",
    "calls",
    "compiler",
    "cubin",
    "function",
    "generated",
    "tensor_map",
    "usable",
]
