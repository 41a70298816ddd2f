"""MiniLM as a whole in eight bits: ours, dense and sparse, against torch float32 and torch's dynamic int8.

    python benchmarks/int8_model.py

One thread, milliseconds of CPU time, the fastest of 15 interleaved calls; mean cosine of the embeddings of 200 verses
to those of float32. Sparse models are pruned by magnitude without repair: it is their time that counts here. It needs
the extra ``bench``.
"""

from __future__ import annotations

import copy
import json
import time
import warnings
from pathlib import Path

import torch
from torch import nn

import gossamer as gs
from gossamer.app.bench.pruning_data import MiniLM, embed, pairs

SIZES = ((1, 16), (1, 128), (8, 64))
PATTERNS = ("2:4", "1:4", "1:10")
_TURNS, _SENTENCES = 15, 200


def models(dense: nn.Module) -> dict[str, nn.Module]:
    """The model in every form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao tells to go to torchao
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(dense), {nn.Linear}, torch.qint8)
    made = {"torch float32": dense, "torch int8 dynamic": small}
    made["ours, dense int8"] = gs.quantize_(copy.deepcopy(dense), "int8")
    for how in PATTERNS:
        made[f"ours, {how} int8"] = gs.quantize_(gs.sparsify_(copy.deepcopy(dense), how), "int8")
    return made


def milliseconds(forms: dict[str, nn.Module], batch: int, length: int) -> dict[str, float]:
    """CPU time of one call of each."""
    tokens = torch.randint(1000, 20000, (batch, length))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(_TURNS):
        for name, model in forms.items():
            begin = time.process_time()
            model(**inputs)
            best[name] = min(best[name], (time.process_time() - begin) * 1e3)
    return {name: round(value, 2) for name, value in best.items()}


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    source = MiniLM()
    forms = models(source.model())
    batches = source.batches([verse for verse, _ in pairs()[:_SENTENCES]])
    exact = embed(forms["torch float32"], batches)
    cosine = {name: float((embed(model, batches) * exact).sum(1).mean()) for name, model in forms.items()}
    times = {f"{batch} x {length}": milliseconds(forms, batch, length) for batch, length in SIZES}
    print("| | " + " | ".join(times) + " | cosine |\n|---|" + "--:|" * (len(times) + 1))
    for name in forms:
        figures = " | ".join(f"{each[name]:.1f}" for each in times.values())
        print(f"| {name} | {figures} | {cosine[name]:.3f} |")
    results = {"torch": torch.__version__, "ms": times, "cosine": cosine}
    (Path(__file__).parent / "results" / "int8-model.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
