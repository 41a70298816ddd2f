"""Sparse tensors and how a call on them is decided: SparseTensor, the table of operators, dispatch, the fallback."""

from gossamer.core import tensor as tensor  # the first of its circle: what it joins and dispatches with imports it
