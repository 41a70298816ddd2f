"""Sparse layers on a GPU against what a user would use instead: cuBLAS, cuSPARSELt and torch CSR.

    python benchmarks/gpu.py               all of it; writes results/gpu-<name>.json, table and plot of the docs
    python benchmarks/gpu.py --quick       the first rows of each part
    python benchmarks/gpu.py --only mlp    products, few, mlp, rows, overhead, pattern, ceilings or sustained

Random weights, random masks of the pattern, random activations, float16, float32 sums. Everything goes through
``F.linear`` or a model's own call, is captured in CUDA graphs of half a millisecond and replayed, contenders
interleaved; the median counts.
With few tokens the calls go round copies of the weight that together are more than twice the second cache. cuBLAS is
the better of both orders of the activations. cuSPARSELt runs in a process of its own: it can take the GPU down with it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.gpu_plot import DOCS, PLOT, floor_of, plot, table  # noqa: E402
from gossamer.formats import Condensed, PackedCSR, PackedVNM  # noqa: E402
from gossamer.kernels.gpu import processors  # noqa: E402
from gossamer.kernels.transpose import feature_major  # noqa: E402
from gossamer.models.pack import graphs as pack_graphs  # noqa: E402
from gossamer.native.cuda import driver  # noqa: E402

RESULTS = HERE / "results"
Call = Callable[[], Any]
SUSTAINED = 1.5  # seconds of a load without pauses
#: rows, cols, tokens; v; m of each product.
PRODUCTS = [
    *(((4096, 4096, 4096), 512, m) for m in (4, 8, 16, 32, 100)),
    *(((4096, 4096, 4096), v, 8) for v in (64, 128, 256, "all")),
    *((shape, 512 if shape[0] > 768 else 256, m)
      for shape in ((1024, 4096, 4096), (4096, 1024, 4096), (768, 3072, 4096)) for m in (8, 16)),
    ((8192, 8192, 8192), 512, 8),
]  # fmt: skip
FEW = [(shape, m, n) for shape in ((14336, 4096), (4096, 14336)) for m in (4, 8, 16) for n in (1, 8, 16)]


def random_mask(rows: int, cols: int, v: int | str, m: int) -> Tensor:
    """A mask of the pattern, drawn at random: 4 columns for v rows, 2 of them for each row. Cols must divide by m."""
    height = rows if v == "all" else min(int(v), rows)
    blocks, groups = -(-rows // height), cols // m
    shared = torch.rand(blocks, groups, m, device="cuda").topk(4, dim=2).indices
    kept = torch.rand(rows, groups, 4, device="cuda").topk(2, dim=2).indices
    mine = shared.repeat_interleave(height, 0)[:rows].gather(2, kept)
    mask = torch.zeros(rows, groups, m, dtype=torch.bool, device="cuda").scatter_(2, mine, True)
    return mask.view(rows, groups * m)


def weights(rows: int, cols: int, v: int | str, m: int) -> tuple[Tensor, Tensor]:
    """A random weight of the pattern, dense and packed; the last group may be smaller than m."""
    dense = torch.randn(rows, cols, device="cuda") / math.sqrt(cols)
    whole = cols - cols % m
    dense[:, :whole] *= random_mask(rows, whole, v, m)
    dense[:, whole:] *= random_mask(rows, cols - whole, v, max(cols - whole, 4))
    dense = dense.half()
    return dense, gs.from_dense(dense, PackedVNM(v, 2, m))  # type: ignore[arg-type]


def clones(weight: Tensor, count: int) -> list[Tensor]:
    """Copies of a weight in memory of their own, index arrays too."""
    from gossamer.models.pack.gpu import _copy

    return [weight, *(_copy(weight) for _ in range(count - 1))]


def replayed(calls: dict[str, list[Call]]) -> dict[str, float]:
    """Microseconds of a call of each contender, as ``pack_`` measures them."""
    return {name: 1e6 * seconds for name, seconds in pack_graphs.replayed(calls).items()}


def error_of(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact.double()).norm() / exact.double().norm())


def products(quick: bool) -> list[dict[str, Any]]:
    """Many tokens: one layer, activations in both orders."""
    found = []
    for (rows, cols, tokens), v, m in PRODUCTS[:2] if quick else PRODUCTS:
        torch.manual_seed(0)
        dense, packed = weights(rows, cols, v, m)
        x = torch.randn(tokens, cols, device="cuda").half()
        turned, lines = feature_major(x), x.t().contiguous()
        calls: dict[str, list[Call]] = {
            "cublas": [lambda x=x, dense=dense: F.linear(x, dense)],
            "cublas_feature_major": [lambda dense=dense, lines=lines: dense @ lines],
            "packed": [lambda turned=turned, packed=packed: F.linear(turned, packed)],
            "packed_token_major": [lambda x=x, packed=packed: F.linear(x, packed)],
        }
        us = replayed(calls)
        exact = F.linear(x.float(), dense.float())
        row = {
            "shape": [rows, cols, tokens], "v": v, "m": m, **{k: round(t, 2) for k, t in us.items()},
            "gain": min(us["cublas"], us["cublas_feature_major"]) / us["packed"],
            "gain_token_major": min(us["cublas"], us["cublas_feature_major"]) / us["packed_token_major"],
            "tflops": 2e-6 * rows * cols * tokens / us["packed"],
            "error": max(error_of(F.linear(t, packed), exact) for t in (x, turned)),
        }  # fmt: skip
        found.append(row)
        say("products", row)
        del dense, packed, x, turned, lines, exact, calls
    return found


def few(quick: bool) -> list[dict[str, Any]]:
    """Few tokens: bound by the bytes of the weight, which come from memory."""
    found = []
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    for (rows, cols), m, tokens in FEW[:1] if quick else FEW:
        torch.manual_seed(0)
        dense, packed = weights(rows, cols, "all", m)
        x = torch.randn(tokens, cols, device="cuda").half()
        many = {
            name: clones(w, math.ceil(2.2 * cache / w.nbytes) + 1)
            for name, w in (("cublas", dense), ("packed", packed))
        }
        us = replayed({name: [lambda w=w, x=x: F.linear(x, w) for w in each] for name, each in many.items()})
        row = {
            "shape": [rows, cols, tokens], "v": "all", "m": m, **{k: round(t, 2) for k, t in us.items()},
            "gain": us["cublas"] / us["packed"], "tbytes": packed.nbytes / us["packed"] / 1e6,
            "error": error_of(F.linear(x, packed), F.linear(x.float(), dense.float())),
        }  # fmt: skip
        found.append(row)
        say("few", row)
        del dense, packed, many
    return found


def mlp(quick: bool) -> list[dict[str, Any]]:
    """An MLP block end to end: gs.sparsify_, gs.pack_, and a call of the model on torch's own token-major tensor."""
    found = []
    for v in ("all",) if quick else ("all", 512):
        torch.manual_seed(0)
        dense = nn.Sequential(nn.Linear(4096, 14336), nn.GELU(), nn.Linear(14336, 4096)).cuda().half().eval()
        x = torch.randn(4096, 4096, device="cuda").half()
        model = gs.sparsify_(copy.deepcopy(dense), gs.VNM(v, 2, 8))
        masked = gs.densify_(copy.deepcopy(model))
        report = gs.pack_(model, x)
        with torch.no_grad():
            us = replayed({"dense": [lambda dense=dense, x=x: dense(x)], "packed": [lambda model=model, x=x: model(x)]})
            row = {
                "block": [4096, 14336, 4096], "tokens": 4096, "v": v, "m": 8, **{k: round(t, 2) for k, t in us.items()},
                "formats": [layer.format for layer in report.layers], "gain": us["dense"] / us["packed"],
                "error": error_of(model(x), masked(x)),
            }  # fmt: skip
        found.append(row)
        say("mlp", row)
    return found


def rows_of(quick: bool) -> list[dict[str, Any]]:
    """CSR and Condensed against torch CSR and cuBLAS."""
    found = []
    cases = [("90%", n) for n in (1, 8, 128, 2048)] + [("95%", 1), ("95%", 128)]
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    for sparsity, tokens in cases[:1] if quick else cases:
        torch.manual_seed(0)
        dense = gs.sparsify(torch.randn(4096, 4096, device="cuda").half() / 64, f"fan-in {sparsity}", gs.Dense())
        csr = gs.from_dense(dense, gs.CSR())
        x = torch.randn(tokens, 4096, device="cuda").half()
        lines = x.t().contiguous()
        rotated = tokens <= 64
        pool: dict[str, Tensor] = {"cublas": dense, "csr": csr, "condensed": gs.from_dense(dense, Condensed()),
                                   "packed_csr": gs.from_dense(dense, PackedCSR())}  # fmt: skip
        calls: dict[str, list[Call]] = {}
        for name, weight in pool.items():
            copies = clones(weight, math.ceil(2.2 * cache / weight.nbytes) + 1 if rotated else 2)
            calls[name] = [lambda w=w, x=x: F.linear(x, w) for w in copies]
        us = replayed(calls)
        us["torch_csr"] = torch_csr(csr, lines, rotated, cache)
        row = {
            "shape": [4096, 4096, tokens], "sparsity": sparsity, **{k: round(t, 2) for k, t in us.items()},
            "csr_over_torch": us["torch_csr"] / us["csr"], "condensed_over_torch": us["torch_csr"] / us["condensed"],
            "condensed_over_cublas": us["cublas"] / us["condensed"], "csr_over_cublas": us["cublas"] / us["csr"],
            "error": max(error_of(F.linear(x, w), F.linear(x.float(), dense.float())) for w in pool.values()),
        }  # fmt: skip
        found.append(row)
        say("rows", row)
    return found


def torch_csr(csr: Tensor, lines: Tensor, rotated: bool, cache: int) -> float:
    """torch's own CSR product, by events: cuSPARSE is not always willing to be captured."""
    each = csr.to_torch()  # type: ignore[attr-defined]
    copies = [each.clone() for _ in range(math.ceil(2.2 * cache / csr.nbytes) + 1 if rotated else 2)]
    times = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for one in copies:
            one @ lines
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(copies))
    return statistics.median(times[2:])


def overhead(quick: bool) -> dict[str, float]:
    """Microseconds of CPU time of an eager call, on a problem so small that the GPU waits for the CPU."""
    found = {}
    for name, v, tokens in (("few", "all", 8), ("many", 512, 128), ("any", 3, 8)):
        dense, packed = weights(512, 512, v, 8)
        token_major = torch.randn(tokens, 512, device="cuda").half()
        x = feature_major(token_major) if name == "many" else token_major
        bias = torch.zeros(512, device="cuda").half()
        with torch.no_grad():
            for what, weight in ((name, packed), (f"{name} dense", dense)):
                best = math.inf
                for _ in range(5 if quick else 20):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(200):
                        F.linear(x, weight, bias)
                    best = min(best, (time.perf_counter() - start) / 200 * 1e6)
                found[what] = round(best, 2)
    say("overhead", found)
    return found


def pattern(quick: bool) -> dict[str, float]:
    """Seconds to choose a pattern and to pack it, 4096 x 4096."""
    weight = torch.randn(4096, 4096, device="cuda").half()
    found = {}
    for how in (gs.VNM(64, 2, 16), gs.VNM("all", 2, 16), gs.VNM(64, 2, 32)):
        how.select(weight.abs())
        torch.cuda.synchronize()
        start = time.perf_counter()
        how.select(weight.abs())
        torch.cuda.synchronize()
        found[f"select {how}"] = round(time.perf_counter() - start, 4)
    dense = gs.sparsify(weight, gs.VNM(64, 2, 16), gs.Dense())
    start = time.perf_counter()
    gs.from_dense(dense, PackedVNM(64, 2, 16))
    torch.cuda.synchronize()
    found["pack 64:2:16"] = round(time.perf_counter() - start, 4)
    say("pattern", found)
    return found


def ceilings(quick: bool) -> dict[str, float]:
    """Microseconds that no product can do without: to start, and to write, or copy, a result of 4096 x 4096."""
    out, other = (torch.zeros(4096, 4096, device="cuda").half() for _ in range(2))
    calls: dict[str, list[Call]] = {
        "fill_ of 33 MB": [lambda: out.fill_(1.0)], "copy_ of 33 MB": [lambda: other.copy_(out)]
    }  # fmt: skip
    if torch.cuda.get_device_capability() == (9, 0):
        code = driver.cubin("ceilings.cu", "sm_90a", {}, folder=HERE)
        boxes, nothing = (
            driver.Function(driver._load(code, name, 0, shared), 0, name, parameters, shared, chained=True)
            for name, parameters, shared in (("write_boxes", "128s i i", 65536), ("nothing", "i", 0))
        )
        place, blocks = driver.tensor_map(out.data_ptr(), 4096, 4096, 8192, 64), (processors(0), 1, 1)
        calls["copy engine, 33 MB"] = [lambda: boxes(blocks, 32, place, 64, 64)]
        calls["empty kernel"] = [lambda: nothing(blocks, 32, 0)]
    found = {name: round(each, 2) for name, each in replayed(calls).items()}
    say("ceilings", found)
    return found


def sustained(quick: bool) -> dict[str, dict[str, Any]]:
    """Microseconds and clock where nothing else runs for a second and a half: the GPU slows down to its power limit."""
    found: dict[str, dict[str, Any]] = {}
    x = torch.randn(4096, 4096, device="cuda").half()
    turned = feature_major(x)
    for m in (4, 8) if quick else (4, 8, 16, 32):
        dense, packed = weights(4096, 4096, 512, m)
        calls: dict[str, Call] = {f"2:{m}": lambda packed=packed: F.linear(turned, packed)}
        if m == 4:
            calls = {"cuBLAS": lambda dense=dense: F.linear(x, dense), **calls}
        for name, call in calls.items():
            found[name] = alone(pack_graphs.capture([call] * 50), 50)
    say("sustained", found)
    return found


def alone(graph: torch.cuda.CUDAGraph, calls: int) -> dict[str, Any]:
    """A graph's time for each of its calls, and the clock that nvidia-smi sees towards the end."""
    query, times, begin = None, [], time.perf_counter()
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    while time.perf_counter() - begin < SUSTAINED:
        taken = 1e6 * pack_graphs.elapsed(graph) / calls
        if time.perf_counter() - begin > 0.6 * SUSTAINED:
            times.append(taken)
            query = query or subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    clock, power = query.communicate()[0].strip().split(", ")[:2] if query else ("", "")
    return {"us": round(statistics.median(times), 2), "clock": clock, "power": power}


def cusparselt(quick: bool) -> dict[str, float]:
    """cuSPARSELt's 2:4 for each shape, in a process of its own; what it printed before a fault counts."""
    command = [sys.executable, str(Path(__file__).resolve()), "--cusparselt", *(["--quick"] if quick else [])]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        text, code = said.stdout, said.returncode
    except subprocess.TimeoutExpired as slow:
        text, code = (slow.stdout or b"").decode() if isinstance(slow.stdout, bytes) else slow.stdout or "", -1
    best: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            best[row["shape"]] = min(row["us"], best.get(row["shape"], math.inf))
    best["exit"] = code
    say("cusparselt", best)
    return best


def cusparselt_worker(quick: bool) -> None:
    """Print a line of JSON for each shape and algorithm that worked."""
    for rows, cols, tokens in dict.fromkeys(shape for shape, *_ in (PRODUCTS[:1] if quick else PRODUCTS)):
        dense, _ = weights(rows, cols, "all", 4)
        x = torch.randn(tokens, cols, device="cuda").half()
        compressed = torch._cslt_compress(dense)
        for algorithm in range(1 if quick else 3):
            us = replayed({"cslt": [lambda a=algorithm, c=compressed, x=x: torch._cslt_sparse_mm(c, x.t(), alg_id=a)]})
            print(
                json.dumps({"shape": f"{rows}x{cols}x{tokens}", "algorithm": algorithm, "us": us["cslt"]}), flush=True
            )


def say(part: str, row: dict[str, Any]) -> None:
    rounded = {k: round(v, 4 if k == "error" else 3) if isinstance(v, float) else v for k, v in row.items()}
    floor = floor_of(part, row)
    missed = "" if floor is None else f"   floor {floor}: {'passed' if row['gain'] >= floor else 'MISSED'}"
    print(part, json.dumps(rounded) + missed, flush=True)


PARTS: dict[str, Callable[[bool], Any]] = {
    "products": products, "few": few, "mlp": mlp, "rows": rows_of, "overhead": overhead, "pattern": pattern,
    "ceilings": ceilings, "sustained": sustained, "cusparselt": cusparselt,
}  # fmt: skip


def run(quick: bool, only: str | None = None) -> dict[str, Any]:
    """Measure, and return all figures with the machine they are of."""
    if not torch.cuda.is_available():
        raise RuntimeError("benchmarks/gpu.py needs a CUDA GPU, and torch sees none")
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "gpu": properties.name, "processors": properties.multi_processor_count, "torch": torch.__version__,
        "cuda": torch.version.cuda, "quick": quick, "dtype": "float16",
    }  # fmt: skip
    with torch.no_grad():
        for name, part in PARTS.items():
            if only in (None, name):
                start = time.perf_counter()
                found[name] = part(quick)
                torch.cuda.empty_cache()
                print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--cusparselt", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cusparselt:
        cusparselt_worker(arguments.quick)
        return
    found = run(arguments.quick, arguments.only)
    name = found["gpu"].lower().replace("nvidia", "").strip().replace(" ", "-")
    out = arguments.out or RESULTS / f"gpu-{name}.json"
    if arguments.only and out.exists():
        found = {**json.loads(out.read_text()), **found}
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    if not arguments.quick and not arguments.only:
        plot(found, PLOT)
        DOCS.mkdir(parents=True, exist_ok=True)
        (DOCS / "gpu-table.md").write_text(table(found) + "\n")


if __name__ == "__main__":
    main()
