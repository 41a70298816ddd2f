"""GPU kernels on a CPU: the same sources, compiled as C++, called with the same packed arguments."""

import ctypes
import hashlib
import re
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from gossamer.native.build import compiler
from gossamer.native.cuda import SOURCES, driver

HERE = Path(__file__).parent


class Emulated:
    """Stands in for :class:`gossamer.native.cuda.Function`."""

    def __init__(self, source, name, parameters, shared, macros, architecture, text=None):
        self._layout = struct.Struct(f"@{parameters}")
        self._arguments = len(driver.places_of(parameters))
        offsets = driver._offsets(parameters)
        self._offsets = (ctypes.c_int * len(offsets))(*offsets)
        self._shared, self._cluster = shared, macros.get("CLUSTER", 1)
        library = ctypes.CDLL(str(build(source, architecture, tuple(sorted(macros.items())), text)))
        self._run = getattr(library, f"launch_{name}")
        self._run.restype = ctypes.c_char_p
        self.launches, self.macros = 0, macros

    def __call__(self, grid, threads, *arguments):
        self.launches += 1
        assert len(arguments) == self._arguments
        size = (ctypes.c_uint * 3)(*grid)
        wrong = self._run(self._layout.pack(*arguments), self._offsets, size, threads, self._shared, self._cluster)
        assert wrong is None, wrong.decode()


@cache
def function(source, name, device, parameters, *, shared=0, chained=False, architecture=900, **macros):
    return Emulated(source, name, parameters, shared, macros, architecture)


@cache
def generated(text, name, device, parameters):
    """As :func:`gossamer.native.cuda.generated`."""
    return Emulated("generated.cu", name, parameters, 0, {}, 900, text)


def tensor_map(address, width, height, line, lines):
    """As :func:`gossamer.native.cuda.tensor_map`."""
    assert address % 16 == 0 and line % 16 == 0 and lines <= 256
    return struct.pack("@Pqqqq88x", address, width, height, line, lines)


function.__doc__ = "As :func:`gossamer.native.cuda.function`."


@cache
def folder():
    return tempfile.TemporaryDirectory(prefix="gossamer-emulated-")  # gone with the process


@cache
def build(source, architecture, macros, text=None):
    """Compile a source with a C++ compiler; every kernel in it gets a launcher. ``text``: it is not a file."""
    included = f'#include "{source}"' if text is None else text
    text = (SOURCES / source).read_text() if text is None else text
    launchers = "".join(
        f'extern "C" const char* launch_{n}(const char* b, const int* o, const unsigned* g, unsigned t, unsigned s, '
        f"unsigned c) {{ return emulated::run({n}, b, o, g, t, s, c); }}\n"
        for n in _names(text)
    )
    key = hashlib.sha256(repr((source, architecture, macros, text)).encode()).hexdigest()[:12]
    unit = Path(folder().name) / f"{Path(source).stem}-{key}.cpp"
    unit.write_text(f'#include "emulate.h"\n{included}\n{launchers}')
    out = unit.with_suffix(".so")
    flags = _flags(architecture, macros)
    before = () if source != "generated.cu" else (f"-I{_header(tuple(flags))}",)
    subprocess.run([*compiler(), *flags, "-shared", *before, f"-I{HERE}", f"-I{SOURCES}", unit, "-o", out], check=True)
    return out


def _flags(architecture, macros):
    known = {"__CUDA_ARCH__": architecture, "GS_INSTEAD": '"emulate_tensor_cores.h"', **dict(macros)}
    return ["-std=c++20", "-O1", "-fPIC", "-w", "-Wno-psabi", *(f"-D{k}={v}" for k, v in known.items())]


@cache
def _header(flags):
    """Where emulate.h is, compiled once: a test may have many sources that the compiler wrote."""
    made = Path(folder().name) / "emulate.h.gch"
    subprocess.run([*compiler(), *flags, "-x", "c++-header", HERE / "emulate.h", "-o", made], check=True)
    return made.parent


def _names(text):
    """The kernels of a source."""
    heads = [part.split("{")[0] for part in text.split('extern "C" __global__ void')[1:]]
    return [next(n for n in re.findall(r"(\w+)\s*\(", head) if not n.startswith("__")) for head in heads]
