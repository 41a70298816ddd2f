"""What a packed model costs to run and to keep: eager, torch.compile, torch.export, AOTInductor; float32 and int8.

    python benchmarks/deploy.py            # a table, and benchmarks/results/deploy.json
    python benchmarks/deploy.py --quick    # fewer runs
    python benchmarks/deploy.py --table    # the table of docs/how-to/compile.md, from the JSON file

Every way of one model is measured in turn, round after round, and the minimum counts. Errors are against the dense
model with the same zeros, as a share of the largest output. One thread unless --threads says otherwise.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import gossamer as gs

RESULTS = Path(__file__).parent / "results" / "deploy.json"
TABLE = Path(__file__).parents[1] / "docs" / "how-to" / "deploy-table.txt"
Call = Callable[..., Tensor]


class Hidden(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).last_hidden_state


def mlp(tokens: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 768))
    return model, (torch.randn(tokens, 768),)


def bert(tokens: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two layers of MiniLM's size."""
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
    config = BertConfig(num_hidden_layers=2, vocab_size=1000, max_position_embeddings=128, **sizes)
    return Hidden(BertModel(config, add_pooling_layer=False)), (torch.randint(0, 1000, (1, tokens)),)


def ways(model: nn.Module, inputs: tuple[Tensor, ...], folder: str, name: str) -> dict[str, Call]:
    """The same model, eager and as it would be deployed."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)  # a graph break would be an error
    program = torch.export.export(model, inputs).run_decompositions()
    torch.export.save(program, f"{folder}/{name}.pt2")
    exported = torch.export.load(f"{folder}/{name}.pt2").module()
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/{name}-aoti.pt2")
    return {
        "eager": model,
        "torch.compile": compiled,
        "torch.export": exported,
        "AOTInductor": torch._inductor.aoti_load_package(package),
    }


def fastest(calls: dict[str, Call], inputs: tuple[Tensor, ...], seconds: float) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(3):
            call(*inputs)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call(*inputs)
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: value * 1e6 for name, value in best.items()}


def weight_bytes(model: nn.Module) -> int:
    """Bytes of everything that the model holds."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(t.nbytes for t in tensors)


def run(name: str, make: Callable[[int], Any], tokens: int, sparsity: str, seconds: float) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model, inputs = make(tokens)
    model.eval().requires_grad_(False)
    gs.sparsify_(model, sparsity)
    rows, calls, bytes = [], {}, {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        dense = gs.densify_(copy.deepcopy(model))
        packed = copy.deepcopy(model)
        for module in packed.modules():
            if isinstance(getattr(module, "weight", None), gs.SparseTensor):
                weight = module.weight
                gs.nn.surgery.replace(weight, weight.detach().to_format(gs.formats.PackedCSR()))
        small = gs.quantize_(copy.deepcopy(packed))
        want = dense(*inputs)
        for kind, one in (("dense", dense), ("packed", packed), ("packed int8", small)):
            bytes[kind] = weight_bytes(one)
            for way, call in ways(one, inputs, folder, kind.replace(" ", "-")).items():
                calls[f"{kind}, {way}"] = call
        times = fastest(calls, inputs, seconds)
        for key, call in calls.items():
            kind, _, way = key.partition(", ")
            error = float((call(*inputs) - want).abs().max() / want.abs().max())
            row = {"model": name, "tokens": tokens, "sparsity": sparsity, "kind": kind, "way": way}
            rows.append({**row, "us": round(times[key], 1), "error": error, "bytes": bytes[kind]})
    return rows


def files(sparsity: str) -> list[dict[str, Any]]:
    """Writing and reading: a packed model and the same as a dense file."""
    torch.manual_seed(0)
    rows = []
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))
    gs.sparsify_(model, sparsity, format=gs.formats.PackedCSR())
    small = gs.quantize_(gs.io.load(nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))), _saved(model)))
    dense = {k: t.to_dense() if isinstance(t, gs.SparseTensor) else t for k, t in model.state_dict().items()}

    def fresh() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.safetensors"
        plain = f"{folder}/plain.safetensors"
        for kind, write, read in (
            ("safetensors, dense", lambda: safetensors.torch.save_file(dense, plain), None),
            ("gs.save, dense", lambda: gs.save(model, path, dense=True), lambda: gs.load(fresh(), path)),
            ("gs.save, packed", lambda: gs.save(model, path), lambda: gs.load(fresh(), path)),
            ("gs.save, packed int8", lambda: gs.save(small, path), lambda: gs.load(fresh(), path)),
        ):
            saved, loaded = float("inf"), float("inf")
            for _ in range(3):
                start = time.perf_counter()
                write()
                saved = min(saved, time.perf_counter() - start)
                start = time.perf_counter()
                if read is None:  # mapped, not read: touch the bytes as a program would
                    for tensor in safetensors.torch.load_file(plain).values():
                        tensor.sum()
                else:
                    read()
                loaded = min(loaded, time.perf_counter() - start)
            size = os.path.getsize(plain if read is None else path)
            rows.append(
                {"file": kind, "bytes": size, "save_ms": round(saved * 1e3, 1), "load_ms": round(loaded * 1e3, 1)}
            )
    return rows


def table(found: dict[str, Any]) -> str:
    """Return the results as the docs show them."""
    ways = ("eager", "torch.compile", "torch.export", "AOTInductor")
    machine = found["machine"]
    lines = [
        f"Milliseconds at 90 % sparsity, {machine['threads']} thread of {machine['cpu']}, torch {machine['torch']}; "
        f"the minimum of many interleaved runs, other programs running beside (load {machine['load'][0]}). The MLP is "
        "768-3072-3072-768, BERT has two layers of 384. By `benchmarks/deploy.py`.",
        "",
        f"| model | tokens | weights | {' | '.join(ways)} | largest error | MB |",
        "|---|--:|---|" + "--:|" * 6,
    ]
    rows = found["rows"]
    for first in (r for r in rows if r["way"] == "eager"):
        same = [r for r in rows if all(r[k] == first[k] for k in ("model", "tokens", "kind"))]
        times = " | ".join(f"{next(r['us'] for r in same if r['way'] == way) / 1e3:.2f}" for way in ways)
        error = max(r["error"] for r in same)
        start = f"| {first['model']} | {first['tokens']} | {first['kind']} | {times} "
        lines.append(f"{start}| {error:.0e} | {first['bytes'] / 1e6:.1f} |")
    lines += ["", "Errors are shares of the largest output, against the dense model with the same zeros.", ""]
    lines += ["| file of 8 layers 2048 x 2048 | MB | save, ms | load, ms |", "|---|--:|--:|--:|"]
    for r in found["files"]:
        lines.append(f"| {r['file']} | {r['bytes'] / 1e6:.1f} | {r['save_ms']:.0f} | {r['load_ms']:.0f} |")
    lines += [
        "",
        "`gs.load` reads and checks every byte, and every index of a sparse tensor; safetensors maps the file and "
        "checks the header. `gs.save` waits until the bytes are on the disk.",
    ]
    return "\n".join(lines) + "\n"


def _saved(model: nn.Module) -> str:
    path = tempfile.mkstemp(suffix=".safetensors")[1]
    gs.save(model, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.table:
        TABLE.write_text(table(json.loads(options.out.read_text())))
        return
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    for name, make, tokens in (("MLP", mlp, 1), ("MLP", mlp, 32), ("BERT", bert, 8), ("BERT", bert, 128)):
        rows += run(name, make, tokens, "90%", 1.0 if options.quick else 8.0)
        base = {r["kind"]: r["us"] for r in rows[-12:] if r["way"] == "eager"}
        for r in rows[-12:]:
            gain = f"{base[r['kind']] / r['us']:5.2f}x eager {base['dense'] / r['us']:5.2f}x dense"
            print(
                f"{r['model']:5} {r['tokens']:4} tokens  {r['kind']:12} {r['way']:14} {r['us']:9.1f} us  {gain}  "
                f"error {r['error']:.1e}  {r['bytes'] / 1e6:6.2f} MB"
            )
    kept = files("90%")
    for r in kept:
        print(f"{r['file']:22} {r['bytes'] / 1e6:8.2f} MB  save {r['save_ms']:8.1f} ms  load {r['load_ms']:8.1f} ms")
    cpu = next((x.partition(":")[2].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "")
    machine = {"cpu": cpu or platform.processor(), "torch": torch.__version__, "threads": options.threads}
    machine["load"] = [round(x, 1) for x in os.getloadavg()]
    options.out.write_text(json.dumps({"machine": machine, "rows": rows, "files": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
