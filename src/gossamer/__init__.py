"""Sparsity in PyTorch: make a model sparse, train it sparse, run it faster than dense. ``import gossamer as gs``."""

import importlib
from typing import TYPE_CHECKING, Any

from gossamer import formats, io, patterns, scores, sparsifiers
from gossamer import models as nn
from gossamer.core.fallback import FallbackWarning, fallback
from gossamer.core.opaque import Opaque
from gossamer.core.table import implements, implements_backward
from gossamer.core.tensor import SparseTensor
from gossamer.formats import BSR, COO, CSC, CSF, CSR, DCSR, ELL, Dense, Format, Masked
from gossamer.io import load, save
from gossamer.models import (
    SparsityBuilder,
    count_flops,
    densify_,
    deploy,
    hf,
    pack_,
    quantize_,
    serve,
    sparsify_,
    summary,
)
from gossamer.ops import (
    Loops,
    Output,
    compile,
    dense_from,
    einsum,
    explain,
    from_dense,
    from_scipy,
    from_torch,
    function,
    implements_sparsifier,
    linear,
    mask,
    sparsified_op,
    sparsify,
)
from gossamer.ops.attend import attention
from gossamer.patterns import (
    NM,
    VNM,
    Blocks,
    FanIn,
    GroupedNM,
    KeepAll,
    Pattern,
    Threshold,
    TransposableNM,
    Unstructured,
)
from gossamer.report import report
from gossamer.scores import Fisher, Gradient, HardConcrete, Magnitude, Movement, Random, Score, Wanda
from gossamer.sparsifiers import Sparsifier

if TYPE_CHECKING:
    from gossamer import prune, train

__version__ = "1.0.0rc1"


def __getattr__(name: str) -> Any:
    if name in ("prune", "train"):  # imported lazily: not every program trains or prunes
        return importlib.import_module(f"gossamer.{name}")
    raise AttributeError(f"module 'gossamer' has no attribute {name!r}")


__all__ = [
    "BSR", "Blocks", "COO", "CSC", "CSF", "CSR", "DCSR", "Dense", "ELL", "FallbackWarning", "FanIn", "Fisher", "Format",
    "Gradient", "GroupedNM", "HardConcrete", "KeepAll", "Loops", "Magnitude", "Masked", "Movement", "NM", "Opaque",
    "Output", "Pattern", "Random", "Score", "SparseTensor", "Sparsifier", "SparsityBuilder", "Threshold",
    "TransposableNM", "Unstructured", "VNM", "Wanda", "attention", "compile", "count_flops", "dense_from", "densify_",
    "deploy", "einsum", "explain", "fallback", "formats", "from_dense", "from_scipy", "from_torch", "function", "hf",
    "implements", "implements_backward", "implements_sparsifier", "io", "linear", "load", "mask", "nn", "pack_",
    "patterns", "prune", "quantize_", "report", "save", "scores", "serve", "sparsified_op", "sparsifiers", "sparsify",
    "sparsify_", "summary", "train",
]  # fmt: skip
