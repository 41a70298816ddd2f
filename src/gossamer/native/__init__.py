"""Native code: the CPU kernels, built on first use by the machine's own compiler, kept in a cache, loaded once.

Nothing of ours is imported here, and nothing is compiled at install time: see :mod:`gossamer.native.library`.
"""

from gossamer.native.build import BuildError, build, cache_dir, compiler
from gossamer.native.ceilings import Ceilings, ceilings
from gossamer.native.library import isa, load, why_not

__all__ = ["BuildError", "Ceilings", "build", "cache_dir", "ceilings", "compiler", "isa", "load", "why_not"]
