"""Sparse tensors and how a call on them is decided: SparseTensor, the table of operators, dispatch, the fallback."""

from gossamer.core import tensor as tensor  # first: the modules of its import cycle import it
