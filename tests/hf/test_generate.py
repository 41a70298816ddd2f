"""generate() on packed models: the tokens of the masked model; pruning and packing of every class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import gossamer as gs
from gossamer.models.names import inputs_first
from tests.hf.models import MODELS, gpt2, inputs, llama, t5
from tests.support import is_sparse


def pack(model: Any) -> None:
    """Pack every sparse weight, also where dense would be faster."""
    for weight in gs.nn.sparse_weights(model).values():
        format = gs.formats.PackedCSR(order=(1, 0) if inputs_first(weight.module) else None)
        weight.become(weight.dense(), weight.mask(), format)


@pytest.mark.parametrize("make", [gpt2, llama, t5])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=str)
def test_same_tokens(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = gs.sparsify_(make().eval(), "75%")
    for parameter in model.parameters():  # so that the best token is clearly the best
        if not is_sparse(parameter) and parameter.dim() > 1:
            parameter.data.mul_(8)
    ids = torch.randint(1, 100, (2, 5))
    call: dict[str, Any] = {
        "max_new_tokens": 12,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        **options,
    }
    masked = model.generate(ids, **call)
    pack(model)
    with gs.fallback("error"):  # every product is one of the packed kernels
        packed = model.generate(ids, **call)
    assert torch.equal(packed, masked)
    assert make is t5 or len(set(packed.flatten().tolist())) > 5
    model.save_pretrained(tmp_path)
    auto = tf.AutoModelForSeq2SeqLM if make is t5 else tf.AutoModelForCausalLM
    assert torch.equal(auto.from_pretrained(tmp_path).generate(ids, **call), masked)


@pytest.mark.parametrize("name", MODELS)
def test_pack_and_compare(name: str) -> None:
    model = gs.sparsify_(MODELS[name][0]().eval(), "95%")
    given = inputs(model)
    with torch.no_grad():
        before = model(**given).logits
        report = gs.pack_(model, given, tune=False)
        after = model(**given).logits
    assert report.layers
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_oneshot(name: str, method: str, tmp_path: Path) -> None:
    make, auto = MODELS[name]
    model = make().eval()
    calibration = [inputs(model) for _ in range(2)]
    report = gs.prune.oneshot(model, "2:4", calibration, method=method, show_progress=False)
    assert report.sparsity == 0.5
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path)
    assert torch.equal(loaded(**calibration[0]).logits, model(**calibration[0]).logits)
    assert len(gs.nn.sparse_parameters(loaded)) == len(report.layers)
