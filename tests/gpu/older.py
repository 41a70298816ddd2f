"""A plugin of pytest: the GPU is taken for an older one, named by $GOSSAMER_TEST_CAPABILITY ("8.0").

Kernels are compiled for that architecture to PTX, which the driver translates for the GPU that is there. So what
Ampere and Ada GPUs run is executed and compared with exact numbers, on a newer GPU.
"""

import ctypes
import os

import torch

from gossamer.native.cuda.compiler import COMMON, CompileError, Nvrtc

MAJOR, MINOR = map(int, os.environ.get("GOSSAMER_TEST_CAPABILITY", "8.0").split("."))


def ptx(self, source, name, arch, flags, folder):
    """As Nvrtc.compile, but PTX."""
    assert arch == f"sm_{MAJOR}{MINOR}", f"a kernel for {arch} on an older GPU"
    options = [f"--gpu-architecture=compute_{MAJOR}{MINOR}", f"-I{folder}", *COMMON, *flags]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    self._check(self._lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None))
    try:
        if self._lib.nvrtcCompileProgram(program, len(options), encoded):
            raise CompileError(self._log(program))
        self._check(self._lib.nvrtcGetPTXSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(self._lib.nvrtcGetPTX(program, text))
        return text.raw
    finally:
        self._lib.nvrtcDestroyProgram(ctypes.byref(program))


def pytest_configure(config):
    torch.cuda.get_device_capability = lambda device=None: (MAJOR, MINOR)
    Nvrtc.compile = ptx
