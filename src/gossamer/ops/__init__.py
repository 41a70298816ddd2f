"""The functions of the operator table.

Importing this package registers them; :mod:`gossamer.core` decides which one computes a call.
"""

from gossamer.compiler.language.custom import function
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.run.crossover import dense_from
from gossamer.core.fallback import FallbackWarning, fallback
from gossamer.core.interop import from_scipy, from_torch
from gossamer.core.table import implements, implements_backward
from gossamer.ops import (
    assign,
    attention,
    bridge,
    conv_dimensions,
    conv_transposed,
    convolution,
    create,
    gradients,
    index,
    join,
    layers,
    matmul,
    norms,
    ordering,
    outer,
    points,
    pointwise,
    rearrange,
    reductions,
    shape,
    softmax,
)
from gossamer.ops.compiled import Compiled, compile
from gossamer.ops.dense import from_dense
from gossamer.ops.einsum import einsum
from gossamer.ops.explain import Explanation, explain
from gossamer.ops.linear import linear
from gossamer.ops.mask import mask
from gossamer.ops.sparsified import Output, sparsified_op
from gossamer.ops.sparsify import implements_sparsifier, sparsify

__all__ = [
    "Compiled", "Explanation", "FallbackWarning", "Loops", "Output", "assign", "attention", "bridge", "compile",
    "conv_dimensions", "conv_transposed", "convolution", "create", "dense_from", "einsum", "explain", "fallback",
    "from_dense", "from_scipy", "from_torch", "function", "gradients", "implements", "implements_backward",
    "implements_sparsifier", "index", "join", "layers", "linear", "mask", "matmul", "norms", "ordering", "outer",
    "points", "pointwise", "rearrange", "reductions", "shape", "softmax", "sparsified_op", "sparsify",
]  # fmt: skip
