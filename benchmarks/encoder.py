"""MiniLM as a whole on a CPU: ours in eight bits, dense and sparse, eager and deployed, against torch and onnxruntime.

    python benchmarks/encoder.py                              all of it: results/encoder.json, and the table of the docs
    python benchmarks/encoder.py --times --sizes 1x128        a part of it, which replaces that part of the results
    python benchmarks/encoder.py --quality --forms 2:4
    python benchmarks/encoder.py --times --threads 2 --forms 2:4 1:4
    python benchmarks/encoder.py --times --machine zen5              figures and table of another machine, beside these
    python benchmarks/encoder.py --times --machine xeon --random     where the pretrained model isn't installed

Times: milliseconds, the fastest of many interleaved calls; CPU time with one thread, so that other programs don't
count, and wall time with two (see turns.py).
Sparse models have patterns by magnitude, because values make no difference, and the layout that ``quantize_`` chooses.
``--random`` times a model of the same sizes with random weights. onnxruntime runs its default optimizations on a graph
of torch.onnx, int8 with a scale for each row. Quality: sparse models are pruned by SparseGPT, which rounds to eight
bits as it goes, with 512 verses and no training; the mean cosine of the embeddings of 150 verses to those of float32,
and how many of them are found in another translation among 500. It needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import torch
import turns
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

import gossamer as gs
from gossamer.app.bench.pruning import Judge
from gossamer.app.bench.pruning_data import MiniLM, pairs

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parents[1] / "docs" / "explanation"
SIZES = ((1, 16), (1, 128), (32, 64))
TWO = "ms, two threads"
FORMS = ("dense", "50%", "2:4", "block 1x4 50%", "1:4", "1:10")
_TEST, _CROWD, _CALIBRATION = slice(0, 150), slice(12000, 12350), slice(1000, 1512)  # verses
_SECONDS, _MOST = 1.0, 60  # for each form, and calls of it
Batch = dict[str, Tensor]


class Hidden(nn.Module):
    """Only the hidden states: what onnxruntime returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Session(nn.Module):
    """An onnxruntime session that is called as the model is."""

    def __init__(self, path: str) -> None:
        super().__init__()
        options = turns.session_options(torch.get_num_threads())
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def forward(self, **batch: Tensor) -> Any:
        out = self.session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})[0]
        return SimpleNamespace(last_hidden_state=torch.from_numpy(out))


def sessions(dense: nn.Module, folder: str) -> dict[str, nn.Module]:
    """The model in onnxruntime, float32 and dynamic int8."""
    model: Any = copy.deepcopy(dense)
    model.set_attn_implementation("eager")  # torch.onnx can't trace the masks of the other
    ids = torch.ones(2, 16, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "hidden")}
    plain, small = f"{folder}/float.onnx", f"{folder}/int8.onnx"
    ends: dict[str, Any] = {"input_names": names, "output_names": ["hidden"], "dynamic_axes": axes}
    torch.onnx.export(Hidden(model), (ids, ids), plain, dynamo=False, opset_version=17, **ends)
    quantize_dynamic(plain, small, per_channel=True, weight_type=QuantType.QInt8)
    return {"onnxruntime float32": Session(plain), "onnxruntime int8 dynamic": Session(small)}


def rivals(dense: nn.Module) -> dict[str, nn.Module]:
    """What a user would take instead."""
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(dense), {nn.Linear}, torch.qint8)
    with TemporaryDirectory() as folder:
        return {"torch float32": dense, "torch int8 dynamic": small, **sessions(dense, folder)}


def ours(dense: nn.Module, how: str, judge: Judge | None = None) -> nn.Module:
    """Ours in eight bits: pruned by SparseGPT with the verses of a judge, or by magnitude."""
    model = copy.deepcopy(dense)
    if how != "dense" and judge is not None:
        batches = judge.bed.batches([verse for verse, _ in pairs()[_CALIBRATION]], 16)
        gs.prune.oneshot(model, how, batches, method=gs.prune.SparseGPT(bits=8))
    elif how != "dense":
        gs.sparsify_(model, how)
    return gs.quantize_(model, "int8")


def example(batch: int, length: int) -> Batch:
    tokens = torch.randint(1000, 20000, (batch, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def milliseconds(forms: dict[str, Callable[..., Any]], inputs: Batch) -> dict[str, float]:
    """Milliseconds of one call of each."""
    best, several = dict.fromkeys(forms, float("inf")), torch.get_num_threads() > 1
    clock = time.perf_counter if several else time.process_time
    begin = clock()
    for turn in range(_MOST):
        if turn > 5 and clock() - begin > _SECONDS * len(forms):
            break
        for name, call in forms.items():
            if several:
                turns.begin(lambda call=call: call(**inputs))
            start = clock()
            call(**inputs)
            best[name] = min(best[name], (clock() - start) * 1e3)
    return {name: round(value, 3) for name, value in best.items()}


def measure(models: dict[str, nn.Module], sizes: Sequence[tuple[int, int]]) -> dict[str, dict[str, float]]:
    """Milliseconds of every form at every size; ours are deployed too."""
    found = {}
    for batch, length in sizes:
        inputs = example(batch, length)
        calls: dict[str, Callable[..., Any]] = dict(models)
        with TemporaryDirectory() as folder:
            for name, model in models.items():
                if name.startswith("ours"):
                    calls[f"{name}, deployed"] = gs.deploy(model, inputs, f"{folder}/model.pt2")
            found[f"{batch} x {length}"] = milliseconds(calls, inputs)
        print(f"{batch} x {length}", found[f"{batch} x {length}"], flush=True)
    return found


def random_model() -> nn.Module:
    """Return a BERT of MiniLM's sizes with random weights."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()


def times(forms: Sequence[str], sizes: Sequence[tuple[int, int]], random: bool = False) -> dict[str, dict[str, float]]:
    """Milliseconds of the rivals and of ours."""
    dense = random_model() if random else MiniLM().model()
    return measure(rivals(dense) | {f"ours, {how} int8": ours(dense, how) for how in forms}, sizes)


def quality(forms: Sequence[str]) -> dict[str, dict[str, float]]:
    """Cosine and share of verses found, of every form."""
    judge = Judge(_TEST, _CROWD)
    found = {}
    for name, model in rivals(judge.dense).items():
        found[name] = judge(model)
    for how in forms:
        found[f"ours, {how} int8"] = judge(ours(judge.dense, how, judge))
        print(how, found[f"ours, {how} int8"], flush=True)
    return found


def table(found: dict[str, Any]) -> str:
    """Return the results as the docs show them."""
    tables = [_table(found["ms"], found["quality"])]
    if found.get(TWO):
        tables += ["Two threads:\n", _table(found[TWO], found["quality"])]
    return "\n".join(tables)


def _table(all_times: dict[str, Any], judged: dict[str, Any]) -> str:
    columns = [*all_times, *(("found", "cosine") if judged else ())]
    rows = ["| | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    names = dict.fromkeys(name for each in all_times.values() for name in each)
    for name in sorted(names, key=lambda name: (name.startswith("ours"), name.endswith("deployed"))):
        figures = " | ".join(f"{each[name]:.2f}" if name in each else "" for each in all_times.values())
        known = judged.get(name.removesuffix(", deployed"))
        quality = f" {known['found']:.1%} | {known['cosine']:.3f} |" if known else " | |" if judged else ""
        rows.append(f"| {name} | {figures} |{quality}")
    return "\n".join(rows) + "\n"


def kept(path: Path, part: str, new: dict[str, Any]) -> dict[str, Any]:
    """Write a part of the results into the file, beside what is there; return all."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"ms": {}, "quality": {}}
    found.setdefault(part, {})
    found |= {"torch": torch.__version__, "onnxruntime": ort.__version__}
    found[part] |= new
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", action="store_true", help="only these")
    parser.add_argument("--quality", action="store_true", help="only this")
    parser.add_argument("--random", action="store_true", help="random weights: only for times")
    parser.add_argument("--forms", nargs="+", default=FORMS)
    parser.add_argument("--sizes", nargs="+", default=[f"{b}x{n}" for b, n in SIZES])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--machine", help="its name in the files of results and tables, if it is another one")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch.ao and torch.onnx, about their successors
    logging.disable(logging.WARNING)
    stem = f"encoder-{options.machine}" if options.machine else "encoder"
    out = RESULTS / f"{stem}.json"
    both = options.times == options.quality
    if both or options.quality:
        kept(out, "quality", quality(options.forms))
    if both or options.times:
        for threads, size in itertools.product(options.threads, options.sizes):
            torch.set_num_threads(threads)
            batch, length = size.split("x")
            found = times(options.forms, [(int(batch), int(length))], options.random)
            kept(out, "ms" if threads == 1 else TWO, found)
    found = json.loads(out.read_text())
    (TABLES / f"{stem}-table.txt").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
