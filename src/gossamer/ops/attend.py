"""gs.attention: attention between the positions where a sparse mask has entries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gossamer.core.tensor import SparseTensor
from gossamer.core.untraced import untraced
from gossamer.formats import Structure
from gossamer.kernels.attention import cuda
from gossamer.ops.einsum import einsum
from gossamer.ops.mask import mask as ones_at


@untraced
def attention(q: Tensor, k: Tensor, v: Tensor, mask: SparseTensor, scale: float | None = None) -> Tensor:
    """Return ``softmax(scale * q @ k.T) @ v``, where each query attends only to the keys that the mask has entries for.

    Scores outside the mask are not computed, or not read. On a GPU, float16 and bfloat16 run as one kernel with an
    online softmax on tensor cores, if the mask has one entry for each 64 positions of the tiles that have any.
    Everything else is three steps for each head: scores, softmax, and the product with ``v``. The gradient is computed
    by these steps as well. ``torch.compile`` runs it between two graphs.

    Parameters
    ----------
    q
        Queries, ``[..., queries, width]``. Leading dimensions are batches and heads.
    k, v
        Keys and values, ``[..., keys, width]``. Their leading dimensions are broadcast with those of ``q``.
    mask
        A sparse matrix, ``queries x keys``, in any format. Only its pattern is used. A query without entries has the
        result 0.
    scale
        By default one over the square root of the width.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> window = gs.from_dense(torch.ones(4, 4).tril().triu(-1), gs.CSR())   # each token and the one before it
    >>> q, k, v = torch.zeros(3, 2, 4, 8).unbind()                           # two heads
    >>> v[0, :, 0] = torch.tensor([1., 3., 5., 7.])
    >>> gs.attention(q, k, v, window)[0, :, 0]
    tensor([1., 2., 4., 6.])
    """
    why, factor = refusal(q, k, v, mask, scale)
    lead = q.shape[:-2]
    if k.shape[:-2] != lead or v.shape[:-2] != lead:
        lead = torch.broadcast_shapes(lead, k.shape[:-2], v.shape[:-2])
        q, k, v = (t.expand(*lead, *t.shape[-2:]) for t in (q, k, v))
    if len(lead) != 1:
        q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v))
    if why is not None:
        out = _by_steps(q, k, v, mask.structure, factor)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out = _Attention.apply(q, k, v, mask.structure, factor)
    else:
        out = cuda.attend(q, k, v, mask.structure, factor)
    return out if len(lead) == 1 else out.view(*lead, *out.shape[-2:])


def refusal(
    q: Tensor, k: Tensor, v: Tensor, mask: SparseTensor, scale: float | None = None
) -> tuple[str | None, float]:
    """Say why a call does not run as one kernel, None if it does; and return its scale.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> refusal(*torch.ones(3, 2, 4), gs.from_dense(torch.eye(2), gs.CSR()))
    ('there is no GPU with the instructions that it needs', 0.5)
    """
    _check(q, k, v, mask)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return cuda.takes(q, v, mask.structure, factor), factor


def _check(q: Tensor, k: Tensor, v: Tensor, mask: SparseTensor) -> None:
    if not isinstance(mask, SparseTensor):
        raise TypeError(
            f"mask is a {type(mask).__name__}, not a sparse tensor: gs.from_dense(mask, gs.CSR()) makes one"
        )
    if min(t.dim() for t in (q, k, v)) < 2 or mask.dim() != 2:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v, mask))
        raise ValueError(f"q, k and v have two dimensions or more, and mask has two, not {shapes}")
    wanted = (q.shape[-2], k.shape[-2])
    if tuple(mask.shape) != wanted or v.shape[-2] != wanted[1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"mask is {tuple(mask.shape)} for {wanted[0]} queries and {wanted[1]} keys with {v.shape[-2]} values, "
            f"of width {q.shape[-1]} and {k.shape[-1]}: these must agree"
        )
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        raise TypeError(f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: they need one floating-point type")
    if not q.device == k.device == v.device == mask.device:
        places = ", ".join(str(t.device) for t in (q, k, v, mask))
        raise ValueError(f"q, k, v and mask are on {places}: move them to one device")


def _by_steps(q: Tensor, k: Tensor, v: Tensor, structure: Structure, scale: float) -> Tensor:
    """Attention of [heads, tokens, width] in three steps for each head."""
    ones = ones_at(SparseTensor(torch.ones(structure.value_shape, dtype=q.dtype, device=q.device), structure))
    if not q.shape[0]:
        return q.new_zeros(0, q.shape[1], v.shape[2])
    out = []
    for one_q, one_k, one_v in zip(q * scale, k, v, strict=True):
        scores = einsum("ij,id,jd->ij", ones, one_q, one_k)
        out.append(einsum("ij,jd->id", torch.softmax(scores, -1), one_v))
    return torch.stack(out)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, structure: Structure, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.structure, ctx.scale = structure, scale
        return cuda.attend(q, k, v, structure, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            out = _by_steps(q, k, v, ctx.structure, ctx.scale)
        return (*torch.autograd.grad(out, (q, k, v), grad), None, None)
