"""One matrix of a stack: its values without a copy, in the format of the matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.core.join import build, values_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Stacked, Structure
from gossamer.formats.stacked import Matrix, matrices


def is_stack(input: SparseTensor) -> bool:
    """Are the matrices of a tensor stored one after the other, and can they be handed out here?

    Examples
    --------
    >>> import gossamer as gs
    >>> is_stack(gs.from_dense(torch.ones(2, 3, 3), Stacked(gs.CSR())))
    True
    """
    stacked = isinstance(input.format, Stacked) and len(input._dense_shape) == 3
    return stacked and not torch.compiler.is_compiling() and matrices_of(input.structure) is not None


def matrices_of(structure: Structure) -> list[Matrix] | None:
    """Return the matrices of a stack, found once; None if they can't be handed out.

    Examples
    --------
    >>> import gossamer as gs
    >>> len(matrices_of(gs.from_dense(torch.ones(2, 3, 3), Stacked(gs.CSR())).structure))
    2
    """
    found: list[Matrix] | None = structure.cached("matrices", lambda: matrices(structure))
    return found


def matrix_of(input: SparseTensor, index: int) -> Tensor:
    """Return a matrix of a stack; gradients of its values are those of the stack's.

    Examples
    --------
    >>> import gossamer as gs
    >>> matrix_of(gs.from_dense(torch.eye(3).expand(2, 3, 3), Stacked(gs.CSR())), -1).format
    CSR()
    """
    found = matrices_of(input.structure)
    assert found is not None
    start, stop, part = found[index]
    values = values_of(input).reshape(-1)[start:stop].view(part.value_shape)
    return build(values, part)


def _takes_bmm(input: Tensor, mat2: SparseTensor) -> str | None:
    if not is_stack(mat2):
        return "its matrices can't be handed out one by one"
    fits = input.dim() == 3 and (input.shape[0], input.shape[2]) == tuple(mat2._dense_shape[:2])
    return None if fits and input.dtype == mat2.dtype else "the shapes or types of the two stacks don't fit"


@implements(torch.bmm, (Dense, Stacked), when=_takes_bmm)
def bmm(input: Tensor, mat2: SparseTensor) -> Tensor:
    """Multiply each matrix of a dense stack by one of a sparse stack."""
    return torch.stack([x @ matrix_of(mat2, i) for i, x in enumerate(input)])
