"""Build a nest and run it on tensors."""

import ctypes

from gossamer.compiler.emit import unit
from gossamer.compiler.run import runtime


def ran(nest, arrays, sizes, chunks=1):
    """Run the C of a nest on these arrays; returns the source."""
    source = unit.source({"fill": nest})
    call = runtime.function(runtime.library(source), "fill")
    held = [arrays[name] for name, _ in nest.arrays]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*(t.data_ptr() for t in held))
    integers = (ctypes.c_long * max(len(nest.sizes), 1))(*(sizes[name] for name in nest.sizes))
    call(runtime.pool(), 1, chunks, pointers, integers, 0, 0)
    return source
