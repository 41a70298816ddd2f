"""GPU kernels on a CPU: the same sources, compiled as C++, called with the same packed arguments."""

import ctypes
import hashlib
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from gossamer.native.build import compiler
from gossamer.native.cuda import SOURCES

HERE = Path(__file__).parent


class Emulated:
    """Stands in for :class:`gossamer.native.cuda.Function`."""

    def __init__(self, source, name, parameters, shared, macros):
        layout = struct.Struct(f"@{parameters}")
        self._layout = layout
        text = (SOURCES / source).read_text()
        self._together = "__syncthreads" in text or "_sync(" in text
        library = ctypes.CDLL(str(build(source, tuple(sorted(macros.items())))))
        self._run = getattr(library, f"launch_{name}")
        self.launches = 0

    def __call__(self, grid, threads, *arguments):
        self.launches += 1
        self._run(self._layout.pack(*arguments), *grid, threads, self._together)


@cache
def function(source, name, device, parameters, *, shared=0, **macros):
    return Emulated(source, name, parameters, shared, macros)


function.__doc__ = "As :func:`gossamer.native.cuda.function`."


@cache
def folder():
    return tempfile.TemporaryDirectory(prefix="gossamer-emulated-")  # gone with the process


@cache
def build(source, macros):
    """Compile a source with a C++ compiler; every kernel in it gets a launcher."""
    text = (SOURCES / source).read_text()
    names = [line.split("(")[0].split()[-1] for line in _declarations(text)]
    launchers = "".join(
        f'extern "C" void launch_{n}(const char* b, unsigned x, unsigned y, unsigned z, unsigned t, bool w) '
        f"{{ run({n}, b, x, y, z, t, w); }}\n"
        for n in names
    )
    key = hashlib.sha256(repr((source, macros, text)).encode()).hexdigest()[:12]
    unit = Path(folder().name) / f"{Path(source).stem}-{key}.cpp"
    unit.write_text(f'#include "emulate.h"\n#include "{source}"\n{launchers}')
    out = unit.with_suffix(".so")
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-w", *(f"-D{k}={v}" for k, v in macros)]
    subprocess.run([*compiler(), *flags, f"-I{HERE}", f"-I{SOURCES}", str(unit), "-o", str(out)], check=True)
    return out


def _declarations(text):
    """What comes after __launch_bounds__ of each kernel: its name and parameters."""
    parts = text.split('extern "C" __global__ void')[1:]
    return [part.split("__launch_bounds__")[1].partition(")")[2] for part in parts]
