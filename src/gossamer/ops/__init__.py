"""How it is computed: the table of operators, dispatch, and the operators themselves.

Importing this package connects :class:`gossamer.SparseTensor` to torch.
"""

from gossamer.compiler.run.crossover import dense_from
from gossamer.core import aten, backward, dispatch, inplace
from gossamer.core.fallback import FallbackWarning, fallback
from gossamer.core.table import implements, implements_backward
from gossamer.core.tensor import _handlers
from gossamer.formats import Structure
from gossamer.formats.values import faster
from gossamer.ops import (
    convert,
    create,
    gradients,
    interop,
    layers,
    matmul,
    packed,
    pointwise,
    rearrange,
    reductions,
    shape,
    softmax,
    vnm,
)
from gossamer.ops.compiled import Compiled, compile
from gossamer.ops.einsum import einsum
from gossamer.ops.explain import Explanation, explain
from gossamer.ops.interop import from_dense, from_scipy, from_torch
from gossamer.ops.linear import linear
from gossamer.ops.sparsified import Output, sparsified_op
from gossamer.ops.sparsify import implements_sparsifier, sparsify

dispatch._SPECIAL.update(
    inplace=inplace.call_inplace,
    out=inplace.call_out,
    written=inplace.write_back,
    backward=backward.with_backward,
)
_handlers.function = dispatch.torch_function
_handlers.aten = aten.torch_dispatch
_handlers.to_torch = interop.to_torch
_handlers.to_scipy = interop.to_scipy
_handlers.convert = convert.convert
_handlers.from_entries = convert.from_entries
faster.scatter, faster.read = convert.scatter, convert.gather
Structure.finder = staticmethod(convert.entries)

__all__ = [
    "Compiled", "Explanation", "FallbackWarning", "Output", "compile", "create", "dense_from", "einsum", "explain",
    "fallback", "from_dense", "from_scipy", "from_torch", "gradients", "implements", "implements_backward",
    "implements_sparsifier", "layers", "linear", "matmul", "packed", "pointwise", "rearrange", "reductions",
    "shape", "softmax", "sparsified_op", "sparsify", "vnm",
]  # fmt: skip
