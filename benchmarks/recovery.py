"""Recovery of a pretrained encoder: all-MiniLM-L6-v2 pruned and trained back by one call, on a GPU.

    python benchmarks/recovery.py prepare passages.txt .scratch/recovery    model and tokens, where the wheels are
    python benchmarks/recovery.py train .scratch/recovery --how 80%         on a GPU
    python benchmarks/recovery.py table                                     the table of the docs

Trained on passages of dictionaries (benchmarks/recovery_text.py), judged on verses of a Bible: the cosine of each
verse's embedding to that of the dense model, and how many verses are found first in another translation. Results go to
benchmarks/results/recovery.json, one entry for each pattern. The dense model is carried to the GPU in half precision.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.app.bench.pruning_data import MiniLM, embedding, pairs

RESULTS = Path(__file__).with_name("results") / "recovery.json"
TABLE = Path(__file__).parents[1] / "docs" / "explanation" / "recovery-table.md"
PASSAGES, BATCH = 150_000, 256
JUDGED, CROWD = slice(400, 1400), slice(1400, 4000)
Batch = dict[str, Tensor]


def prepare(passages: Path, folder: Path) -> None:
    """Write the model in half precision, and the tokens of passages and verses."""
    bed = MiniLM()
    folder.mkdir(parents=True, exist_ok=True)
    model = bed.model()
    torch.save({"config": model.config.to_dict(), "state": model.half().state_dict()}, folder / "model.pt")
    lines = passages.read_text(encoding="utf-8").splitlines()
    random.Random(0).shuffle(lines)
    verses = pairs()
    texts = {
        "train": lines[:PASSAGES], "one": [a for a, _ in verses[JUDGED]],
        "other": [b for part in (JUDGED, CROWD) for _, b in verses[part]],
    }  # fmt: skip
    bed.tokenizer.no_padding()
    tokens = {name: [encoded.ids for encoded in bed.tokenizer.encode_batch(each)] for name, each in texts.items()}
    packed = {
        name: (torch.tensor(list(chain.from_iterable(ids)), dtype=torch.uint16), torch.tensor([len(i) for i in ids]))
        for name, ids in tokens.items()
    }
    torch.save(packed, folder / "tokens.pt")


class Texts:
    """Tokenised texts in batches of similar length, in another order each time; or in the given order."""

    def __init__(self, flat: Tensor, lengths: Tensor, device: str, size: int = BATCH, shuffled: bool = True) -> None:
        self.flat, self.lengths = flat.long().to(device), lengths.to(device)
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.size, self.shuffled, self.rng = size, shuffled, torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[Batch]:
        count = len(self.lengths)
        order = torch.randperm(count, generator=self.rng) if self.shuffled else torch.arange(count)
        if self.shuffled:  # neighbours of 16 batches are sorted by length, so that little is padded
            chunks = [
                chunk[self.lengths[chunk.to(self.lengths.device)].argsort().cpu()]
                for chunk in order.split(16 * self.size)
            ]
            batches = [batch for chunk in chunks for batch in chunk.split(self.size)]
            batches = [batches[i] for i in torch.randperm(len(batches), generator=self.rng).tolist()]
        else:
            batches = list(order.split(self.size))
        for batch in batches:
            yield self.padded(batch.to(self.lengths.device))

    def padded(self, which: Tensor) -> Batch:
        """Return some texts, padded to a common length."""
        lengths = self.lengths[which]
        places = torch.arange(int(lengths.max()), device=which.device)
        mask = places < lengths[:, None]
        at = (self.starts[which, None] + places).clamp(max=len(self.flat) - 1)
        return {"input_ids": torch.where(mask, self.flat[at], 0), "attention_mask": mask.long()}


class Towards(gs.prune.Distill):
    """Hidden states, and the embedding: the mean over the tokens, of length 1."""

    def __call__(self, output: Any, *args: Any, **batch: Any) -> Tensor:
        assert self.teacher is not None
        with torch.no_grad():
            theirs = self.teacher(**batch)
        states = gs.prune.distill_hidden(output.hidden_states, theirs.hidden_states, batch["attention_mask"])
        return states + 1 - (embedding(output, batch) * embedding(theirs, batch).float()).sum(1).mean()


class Judge:
    """Cosine to the dense model's embeddings, and the share of verses found in the other translation."""

    def __init__(self, dense: nn.Module, tokens: dict[str, Any], device: str) -> None:
        self.one, self.other = (list(Texts(*tokens[name], device, shuffled=False)) for name in ("one", "other"))
        self.target = self.embed(dense, self.one)

    @torch.no_grad()
    def embed(self, model: nn.Module, batches: list[Batch]) -> Tensor:
        return torch.cat([embedding(model(**batch), batch) for batch in batches])

    def __call__(self, model: nn.Module) -> dict[str, float]:
        here, there = self.embed(model, self.one), self.embed(model, self.other)
        found = (here @ there.T).argmax(1) == torch.arange(len(here), device=here.device)
        return {"cosine": float((here * self.target).sum(1).mean()), "found": float(found.float().mean())}


def train(folder: Path, how: str, steps: int, lr: float, device: str) -> dict[str, Any]:
    """Prune and recover; return what came out."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    saved = torch.load(folder / "model.pt", weights_only=True)
    tokens = torch.load(folder / "tokens.pt", weights_only=True)
    models = [BertModel(BertConfig.from_dict(saved["config"]), add_pooling_layer=False) for _ in range(2)]
    for model in models:
        model.load_state_dict(saved["state"])
        model.to(device).eval()
    student, dense = models
    for parameter in (*dense.parameters(), *student.embeddings.parameters()):
        parameter.requires_grad_(False)
    judge = Judge(dense, tokens, device)
    before = judge(dense)
    teacher = Towards(dense if device == "cpu" else dense.bfloat16())
    with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        report = gs.prune.recover(
            student, how, Texts(*tokens["train"], device), steps=steps, lr=lr, teacher=teacher,
            optimizer=partial(torch.optim.AdamW, fused=device != "cpu"),
        )  # fmt: skip
    losses = [round(each["loss"], 4) for each in report.history]
    row = {"how": how, "steps": steps, "lr": lr, "sparsity": report.sparsity_of_taken, "seconds": round(report.seconds)}
    return {**row, "dense": before, **judge(student), "losses": losses}


def table(rows: list[dict[str, Any]]) -> str:
    """Return what the docs include."""
    lines = ["*one NVIDIA H200, torch 2.11, three trainings at once; made by `benchmarks/recovery.py`.*", ""]
    lines += ["| pattern | steps | cosine to dense | verses found first | seconds |", "|---|--:|--:|--:|--:|"]
    lines.append(f"| dense | | 1 | {rows[0]['dense']['found']:.1%} | |")
    for row in rows:
        figures = f"{row['cosine']:.3f} | {row['found']:.1%} | {row['seconds']}"
        lines.append(f"| {row['how']} | {row['steps']:,} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the arguments and run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prepare", "train", "table"])
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--how", default="80%")
    parser.add_argument("--steps", type=int, default=1100)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(*arguments.paths)
    elif arguments.part == "train":
        row = train(arguments.paths[0], arguments.how, arguments.steps, arguments.lr, arguments.device)
        print(row, flush=True)
        before = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
        rows = [other for other in before if other["how"] != row["how"]] + [row]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    else:
        TABLE.write_text(table(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
