"""bfloat16 on a CPU: packed layers, and a language model as a whole, against dense bfloat16 and dense int8.

    python benchmarks/halves.py                            all of it: results/halves-<isa>.json and tables of the docs
    python benchmarks/halves.py --only layers --threads 1      layers or model; a part, which replaces that part

Layers: geometric mean over four shapes; copies of each weight are called one after another, together 16 MB, so that
they come from where the weights of a model come from. Rivals: ``F.linear`` of torch, the same with a weight that torch
has brought into its own order before (what torch.compile does with freezing), and our dense int8. Of the formats of a
pattern the fastest counts, as for ``gs.pack_``.

The model: a Llama of four layers (hidden 2048, MLP 5632) with random weights, one token and a prompt of 128, without a
cache; pruned by magnitude, because values make no difference to time. Milliseconds of a call, the fastest of
interleaved ones: CPU time with one thread, so that other programs don't count, else wall time.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import turns
from torch import Tensor, nn
from torch._inductor import config as inductor

import gossamer as gs
from gossamer import native
from gossamer.formats import Format, PackedCSR, PackedNear, PackedNM, PackedTiles
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.weight import rounded
from gossamer.models import DynamicInt8Linear

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parents[1] / "docs" / "explanation"
SHAPES = ((768, 768), (3072, 768), (768, 3072), (2048, 2048))
TOKENS = (1, 4, 16, 128, 1024)
FAR = 16 << 20  # bytes of copies of a weight
PATTERNS: dict[str, tuple[Format, ...]] = {
    "50%": (PackedNear(), PackedTiles()),
    "2:4": (PackedNM(2, 4), PackedTiles()),
    "75%": (PackedCSR(), PackedTiles()),
    "90%": (PackedCSR(), PackedTiles()),
    "1:10": (PackedNM(1, 10), PackedTiles()),
}
DENSE, ORDERED, INT8 = "torch bfloat16", "torch bfloat16, weight reordered before", "gossamer dense int8"
FORMS = ("50%", "75%", "90%")
IN_EIGHT_BITS = ("50%", "90%")
Calls = dict[str, Callable[[], Any]]


def microseconds(calls: Calls, seconds: float) -> dict[str, float]:
    """The fastest call of each, interleaved."""
    several = torch.get_num_threads() > 1
    clock = time.perf_counter if several else time.process_time
    best, begin, turn = dict.fromkeys(calls, math.inf), time.perf_counter(), 0
    while turn < 5 or time.perf_counter() - begin < seconds * len(calls):
        for name, call in calls.items():
            if several:
                turns.begin(call)
            for _ in range(4):
                start = clock()
                call()
                best[name] = min(best[name], (clock() - start) * 1e6)
        turn += 1
    return {name: round(value, 1) for name, value in best.items()}


def by_turns(weights: Sequence[Any], call: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return a function whose calls take one copy after another."""
    copies = itertools.cycle(weights)
    return lambda: call(next(copies))


def layer(shape: tuple[int, int], tokens: int, seconds: float) -> dict[str, float]:
    """Microseconds of a layer in every form."""
    count = max(1, FAR // (2 * math.prod(shape)))
    dense, x = [torch.randn(shape).bfloat16() for _ in range(count)], torch.randn(tokens, shape[1]).bfloat16()
    calls = {DENSE: by_turns(dense, lambda weight: F.linear(x, weight))}
    ordered = [torch.ops.mkldnn._reorder_linear_weight(weight, tokens) for weight in dense]
    calls[ORDERED] = by_turns(ordered, lambda w: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""))
    small = [DynamicInt8Linear(pack_as(rounded(w.float()), w != 0, Layout("dense")), None, shape) for w in dense]
    calls[INT8] = by_turns(small, lambda module: module(x))
    for how, formats in PATTERNS.items():
        kept = [gs.sparsify(weight, how, format=gs.Dense()) for weight in dense]
        for format in formats:
            packed = [gs.from_dense(weight, format) for weight in kept]
            calls[f"{how}|{format}"] = by_turns(packed, lambda weight: F.linear(x, weight))
    return microseconds(calls, seconds)


def layers(threads: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each shape and number of tokens."""
    rows = []
    for shape, tokens in itertools.product(SHAPES, TOKENS):
        rows.append({"threads": threads, "shape": shape, "tokens": tokens, "us": layer(shape, tokens, seconds)})
        print(rows[-1], flush=True)
    return rows


def layer_table(rows: Sequence[dict[str, Any]], threads: int) -> str:
    """Return the speedup over the faster of torch's two, as Markdown."""
    some = {t: [row["us"] for row in rows if (row["threads"], row["tokens"]) == (threads, t)] for t in TOKENS}

    def line(name: str, time_of: Callable[[dict[str, float]], float]) -> str:
        gains = [[min(us[DENSE], us[ORDERED]) / time_of(us) for us in some[t]] for t in TOKENS]
        return f"| {name} | " + " | ".join(f"{math.prod(g) ** (1 / len(g)):.2f}" for g in gains) + " |"

    lines = ["| tokens | " + " | ".join(map(str, TOKENS)) + " |", "|---|" + "--:|" * len(TOKENS)]
    lines += [line(name, lambda us, name=name: us[name]) for name in (DENSE, ORDERED, INT8)]
    for how in PATTERNS:
        lines.append(line(how, lambda us, how=how: min(v for n, v in us.items() if n.startswith(f"{how}|"))))
        lines.append(line(f"{how}, PackedTiles", lambda us, how=how: us[f"{how}|PackedTiles()"]))
    return "\n".join(lines) + "\n"


class States(nn.Module):
    """Only the hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).last_hidden_state


def llama() -> nn.Module:
    """Return a language model with random weights."""
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 5632}
    torch.manual_seed(0)
    return States(LlamaModel(LlamaConfig(**sizes, num_key_value_heads=8, vocab_size=1000))).eval().bfloat16()


def model(threads: int, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of the whole model in every form, for one token and for a prompt."""
    torch.compiler.reset()
    dense = llama()
    examples = {f"{n} token{'s' * (n > 1)}": torch.arange(n)[None] for n in (1, 128)}
    models = {DENSE: dense, INT8: gs.quantize_(copy.deepcopy(dense), "int8")}
    for how in FORMS:
        models[how] = gs.sparsify_(copy.deepcopy(dense), {"*layers*": how})
        if how in IN_EIGHT_BITS:
            models[f"{how}, int8"] = gs.quantize_(copy.deepcopy(models[how]), "int8")
    for name, one in models.items():
        if name != DENSE:
            gs.pack_(one, list(examples.values()), quiet=True)
    found = {}
    for text, ids in examples.items():
        compiled = {f"{name}, compiled": torch.compile(one, dynamic=False) for name, one in models.items()}
        calls: Calls = {name: lambda one=one, ids=ids: one(ids) for name, one in (models | compiled).items()}
        found[text] = {name: round(us / 1e3, 3) for name, us in microseconds(calls, seconds).items()}
        print(threads, text, found[text], flush=True)
    return found


def model_table(found: dict[str, dict[str, float]]) -> str:
    """Return milliseconds as Markdown: eager, and compiled with frozen weights."""
    columns = [f"{text}, {kind}" for text in found for kind in ("eager", "compiled")]
    lines = ["| ms | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for name in (name for name in next(iter(found.values())) if not name.endswith(", compiled")):
        cells = (f"{ms[key]:.1f}" for ms in found.values() for key in (name, f"{name}, compiled"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("layers", "model"))
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each form of a layer; three times for a model")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    inductor.freezing = True
    native.load()
    path = RESULTS / f"halves-{native.tiles_isa()}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"layers": [], "model": {}}
    for threads in options.threads:
        torch.set_num_threads(threads)
        if options.only != "model":
            others = [row for row in found["layers"] if row["threads"] != threads]
            found["layers"] = others + layers(threads, options.seconds)
            (TABLES / f"halves-layers-{threads}-table.txt").write_text(layer_table(found["layers"], threads))
        if options.only != "layers":
            found["model"][str(threads)] = model(threads, 3 * options.seconds)
            (TABLES / f"halves-model-{threads}-table.txt").write_text(model_table(found["model"][str(threads)]))
        path.write_text(json.dumps(found | {"torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
