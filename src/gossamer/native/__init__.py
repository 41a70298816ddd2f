"""Native code: the CPU kernels, out of the wheel or built on first use by the machine's own compiler, loaded once.

Nothing of ours is imported here: see :mod:`gossamer.native.library`.
"""

from gossamer.native.build import build, compiler
from gossamer.native.cache import BuildError, cache_dir
from gossamer.native.ceilings import Ceilings, ceilings
from gossamer.native.library import int8_isa, isa, load, loaded, path, why_not

__all__ = [
    "BuildError",
    "Ceilings",
    "build",
    "cache_dir",
    "ceilings",
    "compiler",
    "int8_isa",
    "isa",
    "load",
    "loaded",
    "path",
    "why_not",
]
