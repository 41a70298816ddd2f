"""Attention of transformers models that decode: every key and value head is read once for all its queries.

With a static cache and ``torch.compile``, transformers' own SDPA attention repeats the heads of the cache for each
query head (four times for Llama 3) before it computes. With many sequences this takes longer than all the weights. Here
the queries of one key head are the rows of one small matrix instead: the same numbers, without copies.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

NAME = "gossamer_grouped"
_OTHERS = ("softcap", "position_bias", "cache")  # options that change what is computed


def grouped_attention_(model: nn.Module) -> nn.Module:
    """Let a transformers model with grouped queries read its cache once when it decodes, in place.

    Prompts, models without grouped queries, and attention with options such as ``softcap`` are computed by
    transformers' SDPA attention as before. ``model.set_attn_implementation("sdpa")`` undoes it.

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
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not models:
        raise TypeError(f"grouped_attention_ takes a model of transformers, not a {type(model).__name__}")
    models[0].set_attn_implementation(NAME)
    return model


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
    if length != 1 or heads == groups or not for_all_heads or others:
        out: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return out
    rows = query.reshape(batch, groups, heads // groups, width)
    mixed = F.scaled_dot_product_attention(rows, key, value, attention_mask, dropout, scale=scaling)
    return mixed.reshape(batch, 1, heads, value.shape[-1]), None
