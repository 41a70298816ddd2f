"""A stand-in for MiniLM and its verses: a random BERT of two layers, and short sentences."""

import torch


class Tiny:
    """As gossamer.app.bench.pruning_data.MiniLM, of two layers; words become numbers by their length."""

    def model(self):
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        return BertModel(BertConfig(vocab_size=1000, **sizes), add_pooling_layer=False).eval()

    def batches(self, sentences, size=32):
        rows = torch.tensor([[100 + 7 * ord(c) % 800 for c in s[:8].ljust(8)] for s in sentences])
        return [{"input_ids": part, "attention_mask": torch.ones_like(part)} for part in rows.split(size)]


def tiny_pairs():
    """As pruning_data.pairs: enough of them that every slice of the benchmark finds some."""
    return [(f"{i:08d}", f"{i:08d}"[::-1]) for i in range(2100)]


def shrink(monkeypatch):
    """Let the demo run on this bed."""
    from gossamer.app.bench import pruning
    from gossamer.app.demo import story

    monkeypatch.setattr(pruning, "MiniLM", Tiny)
    for module in (pruning, story):
        monkeypatch.setattr(module, "pairs", tiny_pairs)
    for name, value in {"TEST": slice(0, 10), "VERSES": 8, "STEPS": 2, "BATCH": 4, "SECONDS": 0.01}.items():
        monkeypatch.setattr(story, name, value)
