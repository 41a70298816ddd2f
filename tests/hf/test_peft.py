"""LoRA on sparse models: adapters train, and merging them leaves the mask as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import gossamer as gs
from tests.hf.models import gpt2, llama

peft = pytest.importorskip("peft")


@pytest.mark.parametrize(("make", "targets"), [(llama, ["q_proj", "v_proj"]), (gpt2, ["c_attn"])])
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR(), gs.formats.PackedCSR()], ids=str)
def test_merge_keeps_the_mask(make: Any, targets: list[str], format: Any, tmp_path: Path) -> None:
    turned = make is gpt2 and not isinstance(format, gs.Masked | gs.CSR)
    model = gs.sparsify_(make().eval(), "75%", format=format.turned() if turned else format)
    before = {n: (p.detach().to_dense().clone(), p.mask()) for n, p in gs.nn.sparse_parameters(model).items()}
    config = peft.LoraConfig(r=4, target_modules=targets, fan_in_fan_out=make is gpt2)
    adapted = peft.get_peft_model(model, config)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    ids = torch.randint(1, 100, (2, 5))
    for _ in range(3):
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    deltas = {
        name.removeprefix("base_model.model."): module.get_delta_weight("default").detach()
        for name, module in adapted.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    with pytest.warns(UserWarning, match="outside the (mask|pattern)"):
        merged = adapted.merge_and_unload()
    after = gs.nn.sparse_parameters(merged)
    assert set(after) == set(before) and deltas
    for name, (weight, mask) in before.items():
        assert torch.equal(after[name].mask(), mask)
        delta = deltas.get(name.removesuffix(".weight"))
        expected = weight if delta is None else (weight + delta) * mask
        torch.testing.assert_close(after[name].detach().to_dense(), expected)
        assert delta is None or not torch.equal(expected, weight)
    merged.save_pretrained(tmp_path)
    loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, merged(ids).logits)
