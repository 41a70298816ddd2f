"""The CUDA driver through ctypes: load machine code, launch a function on torch's current stream.

A launch writes its arguments into a buffer of the thread's own and makes one call of the driver: about 3 us. The
context is torch's (the device's primary one), so tensors, streams, events and graphs are shared with it.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
from functools import lru_cache
from typing import Any

import torch

from gossamer.native.cuda.cache import cubin
from gossamer.native.cuda.compiler import CompileError, compiler

_INVALID_CONTEXT = 201
_MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_LOG = logging.getLogger("gossamer")
_lock = threading.Lock()
_functions: dict[tuple[Any, ...], Function] = {}


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message says which, and why."""


@lru_cache(maxsize=1)
def driver() -> Any:
    """Return libcuda, initialised."""
    try:
        lib: Any = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"no CUDA driver on this machine: {error}") from error
    _declare(lib)
    check(lib, lib.cuInit(0), "cuInit")
    return lib


def _declare(lib: Any) -> None:
    uint, pointer = ctypes.c_uint, ctypes.c_void_p
    lib.cuLaunchKernel.argtypes = (pointer, *(uint,) * 7, pointer, pointer, pointer)
    lib.cuModuleLoadData.argtypes = (pointer, ctypes.c_char_p)
    lib.cuModuleGetFunction.argtypes = (pointer, pointer, ctypes.c_char_p)
    lib.cuFuncSetAttribute.argtypes = (pointer, ctypes.c_int, ctypes.c_int)
    lib.cuCtxSetCurrent.argtypes = (pointer,)
    lib.cuCtxPushCurrent_v2.argtypes = (pointer,)


def check(lib: Any, error: int, what: str) -> None:
    """Raise CudaError, with the driver's own words, unless the call went well."""
    if not error:
        return
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    lib.cuGetErrorName(error, ctypes.byref(name))
    lib.cuGetErrorString(error, ctypes.byref(text))
    said = f"{(name.value or b'unknown error').decode()} ({error}): {(text.value or b'').decode()}"
    raise CudaError(f"{what} failed: {said}")


@lru_cache(maxsize=1)
def usable() -> bool:
    """Can kernels be compiled and launched here? Said once if not: everything then runs on torch's own."""
    try:
        compiler()
        driver()
    except (CompileError, CudaError) as error:
        _LOG.warning("gossamer runs without its own GPU kernels, on torch's slower ones: %s", error)
        return False
    return True


@lru_cache(maxsize=16)
def primary_context(device: int) -> ctypes.c_void_p:
    """Return the context that torch uses on a device."""
    lib, number, context = driver(), ctypes.c_int(), ctypes.c_void_p()
    check(lib, lib.cuDeviceGet(ctypes.byref(number), device), "cuDeviceGet")
    check(lib, lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "cuDevicePrimaryCtxRetain")
    return context


class _Local(threading.local):
    """Arguments of one thread's launches: the buffer, and the list in which the driver finds it."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self.size = ctypes.c_size_t(size)
        pointers = (1, ctypes.addressof(self.buffer), 2, ctypes.addressof(self.size), None)
        self.extra = (ctypes.c_void_p * 5)(*pointers)  # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END


class Function:
    """A kernel on a device, ready to be launched.

    Parameters
    ----------
    handle
        The driver's CUfunction.
    device
        Its number.
    name
        For error messages.
    parameters
        Types of the kernel's parameters as :mod:`struct` writes them: P a pointer, q an int64, i an int32, f a float.
    shared
        Bytes of dynamic shared memory.
    """

    def __init__(self, handle: ctypes.c_void_p, device: int, name: str, parameters: str, shared: int) -> None:
        self._handle, self._device, self._name, self._shared = handle, device, name, shared
        layout = struct.Struct(f"@{parameters}")
        self._pack = layout.pack_into
        self._local = _Local(layout.size)
        self._launch = driver().cuLaunchKernel
        self._stream = torch._C._cuda_getCurrentRawStream
        self._current = torch._C._cuda_getDevice

    def __call__(self, grid: tuple[int, int, int], threads: int, *arguments: Any) -> None:
        """Launch a grid of blocks of so many threads on torch's current stream of the device."""
        local = self._local
        self._pack(local.buffer, 0, *arguments)
        if self._current() == self._device:
            stream = self._stream(self._device)
            error = self._launch(self._handle, *grid, threads, 1, 1, self._shared, stream, None, local.extra)
            if not error:
                return
            if error != _INVALID_CONTEXT:
                check(driver(), error, f"launching {self._name} with a grid of {grid} x {threads} threads")
        self._elsewhere(grid, threads)

    def _elsewhere(self, grid: tuple[int, int, int], threads: int) -> None:
        """Launch from a thread whose context is another device's, or that has none yet."""
        lib = driver()
        check(lib, lib.cuCtxPushCurrent_v2(primary_context(self._device)), "cuCtxPushCurrent")
        try:
            stream, extra = self._stream(self._device), self._local.extra
            error = self._launch(self._handle, *grid, threads, 1, 1, self._shared, stream, None, extra)
        finally:
            lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        check(lib, error, f"launching {self._name} with a grid of {grid} x {threads} threads")


def architecture(device: int) -> str:
    """Return the architecture to compile for: sm_90a on Hopper, whose own instructions need the a."""
    major, minor = torch.cuda.get_device_capability(device)
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def function(source: str, name: str, device: int, parameters: str, *, shared: int = 0, **macros: object) -> Function:
    """Return a kernel of a source, compiled with these macros for a device; the same one for the same request.

    Parameters
    ----------
    source, name
        The file, such as ``"vnm_any.cu"``, and the ``extern "C"`` function in it.
    device
        Number of the CUDA device.
    parameters
        As in :class:`Function`.
    shared
        Bytes of dynamic shared memory that each launch gets.
    **macros
        What the source is configured by.
    """
    key = (source, name, device, shared, *sorted(macros.items()))
    known = _functions.get(key)
    if known is not None:
        return known
    with _lock:
        if key not in _functions:
            code = cubin(source, architecture(device), macros)
            _functions[key] = Function(_load(code, name, device, shared), device, name, parameters, shared)
        return _functions[key]


def _load(code: bytes, name: str, device: int, shared: int) -> ctypes.c_void_p:
    """Load machine code into the device's context; modules stay as long as the process does."""
    lib, module, handle = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    mode = ctypes.c_int(_RELAXED)  # a graph capture under way must not forbid the load
    check(lib, lib.cuCtxPushCurrent_v2(primary_context(device)), "cuCtxPushCurrent")
    try:
        lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        check(lib, lib.cuModuleLoadData(ctypes.byref(module), code), f"loading {name}")
        check(lib, lib.cuModuleGetFunction(ctypes.byref(handle), module, name.encode()), f"finding {name}")
        if shared > 48 * 1024:
            check(lib, lib.cuFuncSetAttribute(handle, _MAX_SHARED, shared), f"giving {name} {shared} bytes")
    finally:
        lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    return handle
