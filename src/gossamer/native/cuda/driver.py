"""The CUDA driver through ctypes: load machine code, launch a function on torch's current stream.

A launch writes its arguments and its shape into thread-local buffers and makes one call of the driver, which takes
about 3 us. The context is torch's (the device's primary one), so tensors, streams, events and graphs are shared with
it.
"""

from __future__ import annotations

import ctypes
import logging
import re
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from gossamer.native.cuda.cache import cubin
from gossamer.native.cuda.compiler import CompileError, compiler

_INVALID_CONTEXT = 201
_MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_CONFIG = struct.Struct("@7I4xPPI4x")  # CUlaunchConfig: grid, threads, shared memory, stream, attributes, their number
_CHAINED = struct.pack("@i4xi60x", 6, 1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: allowed
_LOG = logging.getLogger("gossamer")
_lock = threading.Lock()
_functions: dict[_Request, Function] = {}


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
    lib.cuLaunchKernelEx.argtypes = (pointer,) * 4
    lib.cuTensorMapEncodeTiled.argtypes = (pointer, uint, uint, *(pointer,) * 5, *(uint,) * 4)
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
    """Can kernels be compiled and launched here? If not, one warning says so, and torch's own kernels run."""
    try:
        compiler()
        driver()
    except (CompileError, CudaError) as error:
        _LOG.warning("gossamer can't load its GPU kernels, and uses torch's slower operators: %s", error)
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
    """What one thread's launches hand to the driver: the arguments, where each one lies, and the shape."""

    def __init__(self, layout: struct.Struct, offsets: Sequence[int]) -> None:
        self.arguments = ctypes.create_string_buffer(layout.size)
        self.config = ctypes.create_string_buffer(_CONFIG.size)
        start = ctypes.addressof(self.arguments)
        self._each = (ctypes.c_void_p * len(offsets))(*(start + offset for offset in offsets))
        self.at = ctypes.addressof(self.config), ctypes.addressof(self._each)
        self.shape: tuple[Any, ...] = ()  # stream, grid and threads that the configuration holds


def _offsets(parameters: str) -> list[int]:
    """Where each parameter of a kernel begins, in a buffer of all.

    Examples
    --------
    >>> _offsets("P i q"), _offsets("PPiii 128s")
    ([0, 8, 16], [0, 28])
    """
    words = parameters.split()
    return [
        struct.calcsize(f"@{''.join(words[:n])}0{word.lstrip('0123456789')[0]}")  # 0P: as aligned as a pointer
        for n, word in enumerate(words)
    ]


def places_of(parameters: str) -> list[int]:
    """Return where each argument lies, in a buffer of all: members of a struct are arguments of their own.

    Examples
    --------
    >>> places_of("PPi 128s"), places_of("P 3q i")
    ([0, 8, 16, 20], [0, 8, 16, 24, 32])
    """
    members: list[str] = []
    for count, kind in re.findall(r"(\d*)(\w)", parameters):
        members += [f"{count}s"] if kind == "s" else kind * int(count or 1)
    return [struct.calcsize(f"@{''.join(members[:n])}0{member[-1]}") for n, member in enumerate(members)]


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
        A space between two parameters, none between the members of one that is a struct.
    shared
        Bytes of dynamic shared memory.
    chained
        May the kernel be set up before the one ahead of it in the stream is done? It must itself wait for that one.
    """

    def __init__(
        self, handle: ctypes.c_void_p, device: int, name: str, parameters: str, shared: int, chained: bool = False
    ) -> None:
        self._handle, self._device, self._name = handle, device, name
        self.parameters, self.shared, self.chained = parameters, shared, chained
        layout = struct.Struct(f"@{parameters}")
        self._pack = layout.pack_into
        self._local = _Local(layout, _offsets(parameters))
        self._attributes = ctypes.create_string_buffer(_CHAINED)
        self._tail = (ctypes.addressof(self._attributes), int(chained))
        self._launch = driver().cuLaunchKernelEx
        self._stream = torch._C._cuda_getCurrentRawStream
        self._current = torch._C._cuda_getDevice

    @property
    def handle(self) -> int:
        """The driver's CUfunction, as a number."""
        return self._handle.value or 0

    def __call__(self, grid: tuple[int, int, int], threads: int, *arguments: Any) -> None:
        """Launch a grid of blocks of threads on torch's current stream of the device."""
        local, device = self._local, self._device
        self._pack(local.arguments, 0, *arguments)
        stream = self._stream(device)
        if local.shape != (stream, grid, threads):
            _CONFIG.pack_into(local.config, 0, *grid, threads, 1, 1, self.shared, stream, *self._tail)
            local.shape = (stream, grid, threads)
        if self._current() == device:
            config, each = local.at
            error = self._launch(config, self._handle, each, None)
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
            config, each = self._local.at
            error = self._launch(config, self._handle, each, None)
        finally:
            lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        check(lib, error, f"launching {self._name} with a grid of {grid} x {threads} threads")


@lru_cache(maxsize=4096)
def tensor_map(address: int, width: int, height: int, line: int, lines: int) -> bytes:
    """Return how the copy engine finds boxes of a matrix of 16-bit numbers, 128-byte swizzled in shared memory.

    Parameters
    ----------
    address
        Of the matrix; a multiple of 16.
    width, height
        Elements of a line, and lines.
    line
        Bytes from one line to the next; a multiple of 16.
    lines
        Of a box, up to 256; a line has 64 numbers.
    """
    lib = driver()
    room = ctypes.create_string_buffer(192)
    at = -(-ctypes.addressof(room) // 64) * 64
    sizes, strides = (ctypes.c_uint64 * 2)(width, height), (ctypes.c_uint64 * 1)(line)
    box, steps = (ctypes.c_uint32 * 2)(64, lines), (ctypes.c_uint32 * 2)(1, 1)
    # 1: uint16; then no interleave, 128-byte swizzle, no promotion in the L2 cache, zeros out of bounds
    error = lib.cuTensorMapEncodeTiled(at, 1, 2, address, sizes, strides, box, steps, 0, 3, 0, 0)
    check(lib, error, f"a tensor map of {height} x {width} at {address:#x}, lines of {line} bytes")
    return ctypes.string_at(at, 128)


def architecture(device: int) -> str:
    """Return the architecture to compile for: sm_90a on Hopper, whose own instructions need the a."""
    major, minor = torch.cuda.get_device_capability(device)
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def function(
    source: str, name: str, device: int, parameters: str, *, shared: int = 0, chained: bool = False, **macros: object
) -> Function:
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
    chained
        As in :class:`Function`.
    **macros
        What the source is configured by.
    """
    return _made(_Request(source, None, name, device, parameters, shared, chained, tuple(sorted(macros.items()))))


def generated(text: str, name: str, device: int, parameters: str) -> Function:
    """Return a kernel of a source that is not a file, because the compiler wrote it; else as :func:`function`."""
    return _made(_Request("generated.cu", text, name, device, parameters))


class _Request(NamedTuple):
    """A kernel that was asked for; ``text`` is its source if that is not a file."""

    source: str
    text: str | None
    name: str
    device: int
    parameters: str
    shared: int = 0
    chained: bool = False
    macros: tuple[tuple[str, object], ...] = ()


def _made(key: _Request) -> Function:
    known = _functions.get(key)
    if known is not None:
        return known
    with _lock:
        if key not in _functions:
            code = cubin(key.source, architecture(key.device), dict(key.macros), text=key.text)
            handle = _load(code, key.name, key.device, key.shared)
            _functions[key] = Function(handle, key.device, key.name, key.parameters, key.shared, key.chained)
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
