"""MiniLM as a whole on a CPU: ours in eight bits, dense and sparse, eager and deployed, against torch and onnxruntime.

    python benchmarks/encoder.py                     all of it; prints the table and writes results/encoder.json
    python benchmarks/encoder.py --forms 2:4 --sizes 1x128

One thread, milliseconds of CPU time, the fastest of many interleaved calls: other programs on the machine don't count.
Sparse models are pruned by SparseGPT, which rounds to eight bits as it goes, with 128 verses and no training; layers
are in the layout that ``quantize_`` chooses. Quality is the mean cosine of the embeddings to those of float32, and how
many verses are found in another translation among 500. onnxruntime runs its default optimizations on a graph of
torch.onnx, int8 with a scale for each row. It needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

import gossamer as gs
from gossamer.app.bench.pruning import Judge

RESULTS = Path(__file__).parent / "results" / "encoder.json"
SIZES = ((1, 16), (1, 128), (32, 64))
FORMS = ("dense", "50%", "2:4", "block 1x4 50%", "1:4", "1:10")
_TEST, _CROWD = slice(0, 150), slice(12000, 12350)
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
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
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


def sparse(dense: nn.Module, how: str, judge: Judge) -> nn.Module:
    """Ours in eight bits."""
    model = copy.deepcopy(dense)
    if how != "dense":
        gs.prune.oneshot(model, how, judge.calibration, method=gs.prune.SparseGPT(bits=8))
    return gs.quantize_(model, "int8")


def example(batch: int, length: int) -> Batch:
    tokens = torch.randint(1000, 20000, (batch, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def milliseconds(forms: dict[str, Callable[..., Any]], inputs: Batch) -> dict[str, float]:
    """CPU time of one call of each."""
    best = dict.fromkeys(forms, float("inf"))
    begin = time.process_time()
    for turn in range(_MOST):
        if turn > 5 and time.process_time() - begin > _SECONDS * len(forms):
            break
        for name, call in forms.items():
            start = time.process_time()
            call(**inputs)
            best[name] = min(best[name], (time.process_time() - start) * 1e3)
    return {name: round(value, 3) for name, value in best.items()}


def measure(models: dict[str, nn.Module], sizes: list[tuple[int, int]]) -> dict[str, dict[str, float]]:
    """Milliseconds of every form at every size; ours are deployed too."""
    times = {}
    for batch, length in sizes:
        inputs = example(batch, length)
        calls: dict[str, Callable[..., Any]] = dict(models)
        with TemporaryDirectory() as folder:
            for name, model in models.items():
                if name.startswith("ours"):
                    calls[f"{name}, deployed"] = gs.deploy(model, inputs, f"{folder}/model.pt2")
            times[f"{batch} x {length}"] = milliseconds(calls, inputs)
        print(f"{batch} x {length}", times[f"{batch} x {length}"], flush=True)
    return times


def table(found: dict[str, Any]) -> str:
    """Return the results as the docs show them."""
    times, quality = found["ms"], found["quality"]
    rows = ["| | " + " | ".join(times) + " | found | cosine |", "|---|" + "--:|" * (len(times) + 2)]
    for name, judged in quality.items():
        for full in (name, f"{name}, deployed"):
            if full in next(iter(times.values())):
                figures = " | ".join(f"{each[full]:.2f}" for each in times.values())
                rows.append(f"| {full} | {figures} | {judged['found']:.1%} | {judged['cosine']:.3f} |")
    return "\n".join(rows)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", default=FORMS)
    parser.add_argument("--sizes", nargs="+", default=[f"{b}x{n}" for b, n in SIZES])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch.ao and torch.onnx, about their successors
    logging.disable(logging.WARNING)
    judge = Judge(_TEST, _CROWD)
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(judge.dense), {nn.Linear}, torch.qint8)
    models: dict[str, nn.Module] = {"torch float32": judge.dense, "torch int8 dynamic": small}
    with TemporaryDirectory() as folder:
        models |= sessions(judge.dense, folder)
    models |= {f"ours, {how} int8": sparse(judge.dense, how, judge) for how in options.forms}
    quality = {}
    for name, model in models.items():
        quality[name] = judge(model)
        print(f"{name}: {quality[name]}", flush=True)
    sizes = [(int(b), int(n)) for b, n in (size.split("x") for size in options.sizes)]
    found = {"torch": torch.__version__, "onnxruntime": ort.__version__, "load": os.getloadavg()[0]}
    found |= {"ms": measure(models, sizes), "quality": quality}
    print(table(found))
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
