"""Attention of single queries over a cache, on a GPU."""

import copy
import math

import pytest
import torch

import gossamer as gs
from gossamer.kernels.attention.decode import decode_attention

pytestmark = pytest.mark.gpu


def exact(q, k, v, mask, scale):
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ v).transpose(1, 2)


def check(q, k, v, mask, scale):
    with torch.no_grad():
        found = decode_attention(q, k, v, mask, scale)
    bound = 2 * torch.finfo(q.dtype).eps * exact(q, k, v.abs(), mask, scale) + 1e-6
    assert found is not None and ((found.double() - exact(q, k, v, mask, scale)).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "groups", "keys", "width"),
    [(1, 32, 8, 256, 128), (128, 32, 8, 256, 128), (3, 16, 1, 4097, 64), (1, 8, 8, 20000, 128), (5, 6, 2, 77, 80)],
)
def test_against_exact_numbers(dtype, batch, heads, groups, keys, width):
    q = torch.randn(batch, heads, 1, width, device="cuda", dtype=dtype)
    k, v = (torch.randn(batch, groups, keys, width, device="cuda", dtype=dtype) for _ in range(2))
    check(q, k, v, None, 0.1)
    used = torch.randint(1, keys + 1, (batch, 1), device="cuda")
    mask = (torch.arange(keys, device="cuda") < used)[:, None, None]
    check(q, k, v, mask, 0.1)


def test_a_model_that_decodes():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2}
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=2, **sizes)
    model = LlamaForCausalLM(config).eval().to("cuda", torch.bfloat16)
    ids = torch.randint(256, (3, 17), device="cuda")
    given = torch.ones_like(ids)
    given[0, :5] = 0
    options = {"max_new_tokens": 9, "do_sample": False, "attention_mask": given, "pad_token_id": 0}
    options |= {"output_logits": True, "return_dict_in_generate": True, "cache_implementation": "static"}
    plain = copy.deepcopy(model).generate(ids, **options)
    ours = gs.hf.grouped_attention_(model).generate(ids, **options)  # which compiles, with CUDA graphs
    for one, other in list(zip(ours.logits, plain.logits, strict=True))[:2]:  # later ones may follow other tokens
        assert (one - other).abs().max() < 0.05 * other.abs().max()
    prompt = torch.randint(256, (2, 300), device="cuda")
    with torch.no_grad():
        expected = model(prompt).logits
        got = torch.compile(model)(prompt).logits
    assert (got - expected).norm() < 0.02 * expected.norm()
