"""Layers in eight bits: sparse and dense, against torch's dynamic int8, onnxruntime's, and dense float32.

    python benchmarks/int8.py                      all of it; writes results/int8.json and prints the tables of the docs
    python benchmarks/int8.py --shape 768x768 --threads 1 --tokens 1 128
    python benchmarks/int8.py --quick --out int8-xeon.json           all shapes in four minutes, for another machine
    GOSSAMER_ISA=avx2 python benchmarks/int8.py --quick --out int8-avx2.json        by the kernels of an older processor

All are called as a module (onnxruntime by bound inputs and outputs), in turns of about half a millisecond; the fastest
turn counts. With one thread that is CPU time, which other programs on the machine don't count in. With two it is wall
time (and see turns.py). Of our layouts for a pattern the fastest counts: ``gs.pack_`` measures them and takes it.

onnxruntime is compared where it is installed. Its models are made by the package onnx, which a machine may lack:
``--onnx FOLDER`` writes them there, or reads those that another machine has written. Without them torch's int8 is the
only other library.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import turns
from torch import Tensor, nn

from gossamer import native
from gossamer.app.doctor import cpu
from gossamer.kernels.int8.layout import Layout, layouts, pack_as
from gossamer.kernels.int8.weight import rounded
from gossamer.models import DynamicInt8Linear
from gossamer.patterns import as_pattern

SHAPES = ((768, 768), (3072, 768), (768, 3072))
TOKENS = (1, 16, 128, 1024)
PATTERNS = {
    "unstructured": {50: "50%", 75: "75%", 90: "90%"},
    "1x4 blocks": {50: "block 1x4 50%", 75: "block 1x4 75%", 90: "block 1x4 90%"},
    "n:m": {50: "2:4", 75: "1:4", 90: "1:10"},
    "grouped n:m": {50: "2:4:g16", 75: "1:4:g16", 90: "1:10:g16"},
}
_TURN, _MOST = 0.5e-3, 40  # seconds of a turn, and turns
_PATIENCE, _QUICK = 0.8, 0.25  # seconds for each function
OURS, TORCH, ORT, FLOAT = "ours, dense int8", "torch int8 dynamic", "onnxruntime int8", "torch float32"


def keep_memory() -> None:
    """Let malloc keep what is freed: else some of the interleaved calls need new pages for each result."""
    trim_threshold, mmap_threshold = -1, -3  # numbers of glibc
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)


def timed(functions: dict[str, Callable[[], Any]], cpu: bool, patience: float) -> dict[str, float]:
    """Seconds of each function: the fastest turn of many, interleaved; CPU time, or wall time of several threads."""
    clock = time.process_time if cpu else time.perf_counter
    calls, best = {}, dict.fromkeys(functions, math.inf)
    for name, function in functions.items():
        took = math.inf
        for _ in range(5):
            begin = time.perf_counter()
            function()
            took = min(took, time.perf_counter() - begin)
        calls[name] = max(1, int(_TURN / took))
    begin, done = time.perf_counter(), 0
    while done < 8 or (done < _MOST and time.perf_counter() - begin < patience * len(functions)):
        for name, function in functions.items():
            if not cpu:
                turns.begin(function)
            start = clock()
            for _ in range(calls[name]):
                function()
            best[name] = min(best[name], (clock() - start) / calls[name])
        done += 1
    return best


def write_onnx(weight: Tensor, bias: Tensor, path: Path) -> None:
    """Write a linear layer in onnxruntime's dynamic int8, scales for each row."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    helper, array = onnx.helper, onnx.numpy_helper.from_array
    shapes = {"x": ["tokens", weight.shape[1]], "y": ["tokens", weight.shape[0]]}
    ends = {n: helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n, shape in shapes.items()}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["y"])]
    constants = [array(weight.t().contiguous().numpy(), "w"), array(bias.numpy(), "b")]
    graph = helper.make_graph(nodes, "linear", [ends["x"]], [ends["y"]], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/float.onnx")
        quantize_dynamic(f"{folder}/float.onnx", str(path), per_channel=True, weight_type=QuantType.QInt8)


def onnx_model(weight: Tensor, bias: Tensor, folder: Path) -> Path | None:
    """Return the model of onnxruntime for a layer of this shape; None if it is not there and can't be made."""
    path = folder / f"int8-{weight.shape[0]}x{weight.shape[1]}.onnx"
    if not path.exists():
        try:
            write_onnx(weight, bias, path)
        except ImportError:
            return None
    return path


def by_onnxruntime(model: Path | None, x: Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    """A call of onnxruntime's dynamic int8 for a linear layer; none where it is not installed."""
    try:
        import onnxruntime as ort
    except ImportError:
        return {}
    if model is None:
        return {}
    session = ort.InferenceSession(str(model), turns.session_options(threads), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x.numpy())
    binding.bind_output("y", "cpu")
    return {ORT: lambda: session.run_with_iobinding(binding)}


def by_torch(weight: Tensor, bias: Tensor, x: Tensor) -> dict[str, Callable[[], Any]]:
    """torch's float32 layer and its dynamic int8."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao tells to go to torchao
        small = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {nn.Linear}, torch.qint8)[0]
    return {FLOAT: lambda: layer(x), TORCH: lambda: small(x)}


def ours(shape: tuple[int, int], bias: nn.Parameter) -> dict[str, DynamicInt8Linear]:
    """A layer for each pattern, sparsity and layout, and a dense one."""
    weight = torch.randn(shape)
    made = {OURS: DynamicInt8Linear(pack_as(rounded(weight), weight != 0, Layout("dense")), bias, shape)}
    for pattern, by_sparsity in PATTERNS.items():
        for sparsity, text in by_sparsity.items():
            mask = as_pattern(text).select(weight.abs())
            for layout in layouts(mask)[1:]:
                packed = pack_as(rounded(weight * mask), mask, layout)
                made[f"{pattern}|{sparsity}|{layout}"] = DynamicInt8Linear(packed, bias, shape)
    return made


def run(
    shapes: Iterable[tuple[int, int]], threads: Iterable[int], tokens: Iterable[int], patience: float, folder: Path
) -> list[dict[str, Any]]:
    """Measure; a row for each layer, number of threads and tokens, in microseconds."""
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        bias = nn.Parameter(torch.randn(shape[0]), requires_grad=False)
        layers, weight = ours(shape, bias), torch.randn(shape)
        model = onnx_model(weight, bias.detach(), folder)
        for count in threads:
            torch.set_num_threads(count)
            for token in tokens:
                x = torch.randn(token, shape[1])
                calls = by_torch(weight, bias.detach(), x) | by_onnxruntime(model, x, count)
                calls |= {name: lambda layer=layer, x=x: layer(x) for name, layer in layers.items()}
                with torch.no_grad():
                    found = timed(calls, count == 1, patience)
                us = {name: round(seconds * 1e6, 2) for name, seconds in found.items()}
                rows.append({"shape": shape, "threads": count, "tokens": token, "us": us})
                print(shape, count, token, {n: us[n] for n in (FLOAT, TORCH, ORT, OURS) if n in us}, flush=True)
    return rows


def best_of(us: dict[str, float], pattern: str, sparsity: int) -> float:
    """Microseconds of the fastest layout of a pattern; dense counts too, as it does for pack_."""
    found = [v for name, v in us.items() if name.startswith(f"{pattern}|{sparsity}|")]
    return min([*found, us[OURS]])


def rival(us: dict[str, float]) -> float:
    """Microseconds of the better dense int8 of torch and onnxruntime."""
    return min(us[TORCH], us.get(ORT, math.inf))


def mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def tables(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the better dense int8 of torch and onnxruntime over ours, mean over the shapes."""
    lines = []
    tokens, threads = (sorted({row[key] for row in rows}) for key in ("tokens", "threads"))
    for count in threads:
        some = {t: [r["us"] for r in rows if r["threads"] == count and r["tokens"] == t] for t in tokens}
        header = " | ".join(f"{t} tokens" if t > 1 else "1 token" for t in tokens)
        lines += [f"\n{count} thread{'s' if count > 1 else ''}:\n", f"| | {header} |", "|---|" + "--:|" * len(tokens)]

        def row(name: str, ratio: Callable[[dict[str, float]], float], some: Any = some) -> str:
            return f"| {name} | " + " | ".join(f"{mean(map(ratio, some[t])):.2f}" for t in tokens) + " |"

        for name in (name for name in (FLOAT, TORCH, ORT, OURS) if name in rows[0]["us"]):
            lines.append(row(name, lambda us, name=name: rival(us) / us[name]))
        for pattern, by_sparsity in PATTERNS.items():
            for s in by_sparsity:

                def ratio(us: dict[str, float], pattern: str = pattern, s: int = s) -> float:
                    return rival(us) / best_of(us, pattern, s)

                lines.append(row(f"{pattern}, {s} %", ratio))
    return "\n".join(lines)


def about() -> dict[str, Any]:
    """The machine and the versions."""
    found = {"machine": cpu()["model"], "cores": cpu()["cores"], "isa": native.int8_isa(), "torch": torch.__version__}
    try:
        import onnxruntime
    except ImportError:
        return found
    return found | {"onnxruntime": onnxruntime.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="only this one, such as 768x3072; may be repeated")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--quick", action="store_true", help="a third of the time for each layer")
    parser.add_argument("--seconds", type=float, help="for each layer; 0.8 by default, 0.25 with --quick")
    parser.add_argument("--onnx", type=Path, help="folder of onnxruntime's models: read, or written where they are not")
    parser.add_argument("--out", type=Path, help="file for the results; results/int8.json if everything is measured")
    options = parser.parse_args()
    torch.manual_seed(0)
    native.load()
    keep_memory()
    pairs: Any = [tuple(map(int, text.split("x"))) for text in options.shape or ()] or SHAPES
    seconds = options.seconds or (_QUICK if options.quick else _PATIENCE)
    with TemporaryDirectory() as own:
        folder = options.onnx or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        rows = run(pairs, options.threads, options.tokens, seconds, folder)
    print(tables(rows))
    whole = options.threads == [1, 2] and tuple(options.tokens) == TOKENS
    everything = whole and not (options.shape or options.quick or options.seconds)
    out = options.out or (Path(__file__).parent / "results" / "int8.json" if everything else None)
    if out is not None:
        text = ",\n".join(json.dumps(row) for row in rows)
        out.write_text(f'{{\n"about": {json.dumps(about())},\n"rows": [\n{text}\n]\n}}\n')


if __name__ == "__main__":
    main()
