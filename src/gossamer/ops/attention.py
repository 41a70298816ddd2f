"""torch's multi-head attention with sparse projections: the products are sparse, the attention is torch's.

``nn.MultiheadAttention`` gives its weights to one function, ``F.multi_head_attention_forward``, which is no operator of
its own: it projects, attends, and projects back. So does this one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.formats import Dense, Format


class Heads(NamedTuple):
    """Queries, keys and values of all heads, [batch, heads, positions, width], and what masks them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # that broadcasts to [batch, heads, queries, keys]


def _takes(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, *args: Any, **options: Any
) -> str | None:
    if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
        return "query, key and value have other numbers of dimensions"
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        return "the width is another one, or no multiple of the number of heads"
    if options.get("static_k") is not None or options.get("static_v") is not None:
        return "keys or values are given as they are"
    return None


_KINDS = (*(Dense,) * 5, Format, *(Dense,) * 5, Format, Dense)


@implements(F.multi_head_attention_forward, _KINDS, when=_takes)
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: None = None,
    static_v: None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of several heads, whose projections are sparse matrices."""
    batched = query.dim() == 3
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (in_proj_weight,)
    q, k, v = _projected(query, key, value, weights, in_proj_bias)
    if not batched:
        q, k, v = (t.unsqueeze(1) for t in (q, k, v))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    extra = [(bias_k, bias_v)] if bias_k is not None and bias_v is not None else []
    extra += [(k.new_zeros(1, 1, k.shape[-1]),) * 2] if add_zero_attn else []
    for more_k, more_v in extra:
        k, v = (torch.cat([t, more.expand(1, t.shape[1], -1)]) for t, more in ((k, more_k), (v, more_v)))
    causal = is_causal and key_padding_mask is None and not need_weights  # then torch needs no mask tensor
    mask = None if causal else _mask(attn_mask, key_padding_mask, num_heads, len(extra), q.dtype)
    heads = _heads(q, k, v, num_heads, mask)
    out, shares = _attended(heads, dropout_p if training else 0.0, need_weights, causal)
    out = F.linear(out.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if shares is not None:
        shares = shares.mean(1) if average_attn_weights else shares
        shares = shares if batched else shares.squeeze(0)
    return out if batched else out.squeeze(1), shares


def _projected(query: Tensor, key: Tensor, value: Tensor, weights: Any, bias: Tensor | None) -> Any:
    """Queries, keys and values: by one product where they are one tensor and the weights are."""
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    if len(weights) == 1:
        (whole,) = weights
        if query is key and key is value:
            return F.linear(query, whole, bias).chunk(3, -1)
        width = whole.shape[0] // 3
        weights = [whole[i * width : (i + 1) * width] for i in range(3)]
    return [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _heads(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Heads:
    q, k, v = (t.reshape(*t.shape[:2], heads, -1).permute(1, 2, 0, 3) for t in (q, k, v))
    return Heads(q, k, v, mask)


def _mask(attended: Tensor | None, padding: Tensor | None, heads: int, extra: int, dtype: torch.dtype) -> Tensor | None:
    """One mask to add to the scores, of those that say who attends to whom and which keys are padding."""
    made: Tensor | None = None
    if attended is not None:
        made = _to_add(attended, extra, dtype)
        made = made.view(-1, heads, *made.shape[1:]) if made.dim() == 3 else made[None, None]
    if padding is not None:
        keys = _to_add(padding, extra, dtype)[:, None, None, :]
        made = keys if made is None else made + keys
    return made


def _to_add(mask: Tensor, extra: int, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
    return F.pad(mask.to(dtype), (0, extra)) if extra else mask.to(dtype)


def _attended(heads: Heads, dropout: float, need_weights: bool, causal: bool) -> tuple[Tensor, Tensor | None]:
    if not need_weights:
        return F.scaled_dot_product_attention(heads.q, heads.k, heads.v, heads.mask, dropout, causal), None
    scores = (heads.q * math.sqrt(1.0 / heads.q.shape[-1])) @ heads.k.transpose(-2, -1)
    shares = torch.softmax(scores if heads.mask is None else scores + heads.mask, -1)
    shares = F.dropout(shares, dropout) if dropout else shares
    return shares @ heads.v, shares
