"""Sparsifiers: a score with a pattern. Any score works with any pattern; common combinations have names.

================================  ======  ========  =============
sparsifier                        passes  memory    kind
================================  ======  ========  =============
`KeepAll()`                       1       O(1)      streaming
`RandomFraction(p)`               1       O(1)      streaming
`ScalarThreshold(t)`              1       O(1)      streaming
`ScalarFraction(p)`               2       O(nnz)    materializing
`BlockwiseFraction(p, block)`     2       O(nnz)    materializing
`PerBlockFraction(n, m)`          2       O(b)      blocking
`GroupedNM(n, m, g)`              2       O(b)      blocking
`Movement(p)`, `HardConcrete()`   3, 2    O(nnz)    materializing
================================  ======  ========  =============
"""

from gossamer.sparsifiers.base import Sparsifier, as_sparsifier
from gossamer.sparsifiers.named import (
    BlockwiseFraction,
    GroupedNM,
    HardConcrete,
    KeepAll,
    Movement,
    PerBlockFraction,
    RandomFraction,
    ScalarFraction,
    ScalarThreshold,
)

__all__ = [
    "BlockwiseFraction",
    "GroupedNM",
    "HardConcrete",
    "KeepAll",
    "Movement",
    "PerBlockFraction",
    "RandomFraction",
    "ScalarFraction",
    "ScalarThreshold",
    "Sparsifier",
    "as_sparsifier",
]
