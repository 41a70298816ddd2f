"""Native code: the CPU kernels, from the wheel or compiled at first use by the machine's compiler, loaded once.

This package imports nothing else of gossamer: see :mod:`gossamer.native.library`.
"""

from gossamer.native.build import build, compiler
from gossamer.native.cache import BuildError, cache_dir
from gossamer.native.ceilings import Ceilings, ceilings
from gossamer.native.direct import direct
from gossamer.native.library import forget, int8_isa, isa, load, loaded, path, tiles_isa, why_not

__all__ = [
    "BuildError",
    "Ceilings",
    "build",
    "cache_dir",
    "ceilings",
    "compiler",
    "direct",
    "forget",
    "int8_isa",
    "isa",
    "load",
    "loaded",
    "path",
    "tiles_isa",
    "why_not",
]
