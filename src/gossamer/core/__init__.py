"""Sparse tensors and how a call on them is decided: SparseTensor, the table of operators, dispatch, the fallback."""
