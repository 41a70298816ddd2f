"""What the GPU back end takes: asked before a call runs, forward and backward, so that a fallback is known in time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gossamer.compiler.gpu.design import NoKernelError, roles, sparse_in
from gossamer.compiler.gpu.joined import pattern_refusal
from gossamer.compiler.gpu.types import VALUES
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.flat import flattened
from gossamer.formats import Format


def refusal(
    statement: Statement, args: Sequence[Arg], sizes: dict[str, int], dtype: torch.dtype, out: str | int | Format
) -> str | None:
    """Say why no kernel of the GPU computes a statement; None if one does.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.compiler import parse
    >>> a = Arg(("i", "j"), gs.from_dense(torch.eye(3), gs.CSR()).structure, (3, 3))
    >>> refusal(parse("ij->i", (2,)), [a], {"i": 3, "j": 3}, torch.float32, "dense")
    >>> b = a._replace(vars=("j", "i"))
    >>> refusal(parse("ij + ji -> ij", (2, 2)), [a, b], {"i": 3, "j": 3}, torch.float32, "dense")
    'no sparse operand is a factor of every term, with each of its indices once'
    """
    if dtype not in VALUES:
        return f"there are no GPU kernels for {str(dtype)[6:]}"
    if flattened(statement, args, sizes, out) is not None:
        return None
    if isinstance(out, Format):
        return pattern_refusal(statement, args)
    like = args[out].structure if isinstance(out, int) else None
    if not sparse_in(args):
        return None
    try:
        roles(statement, args, "dense" if like is not None and like.plain else out)
    except NoKernelError as error:
        return str(error)
    return None
