"""Small models of real transformers classes, from their configs: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def gpt2() -> Any:
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}
    return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=100, bos_token_id=0, eos_token_id=0, **sizes))


def llama() -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=100, num_key_value_heads=2, **_SIZES))


def bert() -> Any:
    return tf.BertForSequenceClassification(tf.BertConfig(vocab_size=100, **_SIZES))


def vit() -> Any:
    sizes = {k: v for k, v in _SIZES.items() if k != "max_position_embeddings"}
    return tf.ViTForImageClassification(tf.ViTConfig(image_size=32, patch_size=8, **sizes))


def t5() -> Any:
    sizes: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=100, decoder_start_token_id=0, **sizes))


def inputs(model: Any) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, 100, (2, 7))
    if isinstance(model, tf.ViTForImageClassification):
        return {"pixel_values": torch.rand(2, 3, 32, 32)}
    if isinstance(model, tf.T5ForConditionalGeneration):
        return {"input_ids": ids, "decoder_input_ids": ids}
    return {"input_ids": ids}


#: name -> (a fresh model, the Auto class that loads it)
MODELS: dict[str, tuple[Callable[[], Any], Any]] = {
    "GPT-2": (gpt2, tf.AutoModelForCausalLM),
    "Llama": (llama, tf.AutoModelForCausalLM),
    "BERT": (bert, tf.AutoModelForSequenceClassification),
    "ViT": (vit, tf.AutoModelForImageClassification),
    "T5": (t5, tf.AutoModelForSeq2SeqLM),
}
