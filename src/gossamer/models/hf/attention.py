"""Attention of transformers models: every key and value head is read once for all its queries, and only where needed.

With a static cache and ``torch.compile``, transformers' own SDPA attention repeats the heads of the cache for each
query head (four times for Llama 3) before it computes. With many sequences this takes longer than all the weights. Here
the queries of one key head are the rows of one small matrix instead: the same numbers, without copies. On a GPU a
kernel of ours skips the places of the cache that are not in use.

In a compiled prompt, transformers builds the causal mask as a tensor, and SDPA then computes all scores and masks half
of them. Here the mask is left out where SDPA's own causal attention is the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kernels.attention.decode import decode_attention

NAME = "gossamer_grouped"
_OTHERS = ("softcap", "position_bias", "cache")  # options that change what is computed


def grouped_attention_(model: nn.Module) -> nn.Module:
    """Let a transformers model read its cache once for all queries of a key head when it decodes, in place.

    Prompts, and attention with options such as ``softcap``, are computed by transformers' SDPA attention as before; in
    a compiled prompt without padding, without a mask. ``model.set_attn_implementation("sdpa")`` undoes it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1)
    >>> model = LlamaForCausalLM(LlamaConfig(num_attention_heads=8, num_key_value_heads=2, **sizes)).eval()
    >>> gs.hf.grouped_attention_(model).config._attn_implementation
    'gossamer_grouped'
    """
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, attention_mask)
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not models:
        raise TypeError(f"grouped_attention_ takes a model of transformers, not a {type(model).__name__}")
    models[0].set_attn_implementation(NAME)
    return model


def attention_mask(**options: Any) -> Tensor | None:
    """Return transformers' mask for SDPA; None for a whole prompt, in a trace too, where SDPA's causal attention is it.

    Examples
    --------
    >>> attention_mask(batch_size=1, q_length=1, kv_length=3, q_offset=2, allow_is_causal_skip=False)
    tensor([[[[True, True, True]]]])
    """
    from transformers.masking_utils import sdpa_mask

    return None if torch.compiler.is_dynamo_compiling() and _is_whole_prompt(**options) else sdpa_mask(**options)


def _is_whole_prompt(
    q_length: int = 0, kv_length: int = 1, q_offset: Any = None, kv_offset: Any = None, attention_mask: Any = None,
    local_size: int | None = None, allow_is_causal_skip: bool = False, **options: Any,
) -> bool:  # fmt: skip
    """Is each token to see all before it, with no padding and nothing in a cache?"""
    begins = all(isinstance(offset, int) and offset == 0 for offset in (q_offset, kv_offset))
    whole = allow_is_causal_skip and attention_mask is None and begins and q_length == kv_length
    return whole and q_length > 1 and (local_size is None or kv_length < local_size)


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the attention of queries [batch, heads, length, width], as transformers calls it."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    batch, heads, length, width = query.shape
    groups = key.shape[1]
    for_all_heads = attention_mask is None or attention_mask.shape[1] == 1
    others = any(options.get(name) is not None for name in _OTHERS)
    if length == 1 and not others and not dropout:
        mixed = decode_attention(query, key, value, attention_mask, scaling)
        if mixed is not None:
            return mixed, None
    if length != 1 or heads == groups or not for_all_heads or others:
        out: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return out
    rows = query.reshape(batch, groups, heads // groups, width)
    mixed = F.scaled_dot_product_attention(rows, key, value, attention_mask, dropout, scale=scaling)
    return mixed.reshape(batch, 1, heads, value.shape[-1]), None
