"""A language model of the shape of Llama 8B, end to end on a GPU: dense, dense FP8, cuSPARSELt and ours, interleaved.

python benchmarks/llm.py                       six layers; results/llm.json, docs/explanation/llm-table.md and llm.svg
python benchmarks/llm.py --tables              the table and the picture again, from results/llm.json
python benchmarks/llm.py --tiny                a few numbers on any machine, CPU too: does it still run?

transformers' LlamaModel of 6 of the 32 layers, bf16, random weights and masks; without the head, which beside 6 layers
would weigh five times as much as in the whole model. Sparse MLPs of 2:8 are shrunk: see ``pruned``. Decoding is one
call for one token of each sequence, with a static cache of 256 tokens. All models have ``gs.hf.grouped_attention_``,
dense ones too, except one that has transformers' own attention. Each contender is a process that holds its model; one
at a time runs, in turns for each size, with Python's garbage collector off. The figure is the fastest turn, the mean of
its calls: others on the machine only add to it, and in eager mode, where the CPU is the limit, by up to a third.
``graph`` replays a CUDA graph of the call, ``compiled`` is ``torch.compile(model.forward, mode="reduce-overhead")``.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.llm_tables import write  # noqa: E402
from gossamer.formats import PackedVNM  # noqa: E402
from gossamer.models.weights import all_weights  # noqa: E402

#: Batch and length; length 1 decodes with a cache.
CASES = {
    "1": (1, 1), "8": (8, 1), "16": (16, 1), "32": (32, 1), "64": (64, 1), "128": (128, 1),
    "512": (1, 512), "2048": (1, 2048), "4 x 2048": (4, 2048),
}  # fmt: skip
#: Rows, columns and m of sparse layers, and of gated ones.
LAYERS = ((4096, 4096, 4), (1024, 4096, 4), (4096, 14336, 4), (4096, 7168, 4))
GATED = ((14336, 4096, 4), (7168, 4096, 8))
MODES = ("eager", "graph", "compiled")
CACHE, START = 256, 100
SECONDS = 0.03  # of one turn
EAGER = 3  # times as many turns of eager calls, whose times vary most


def shared_columns(cols: int, m: int, device: str) -> Tensor:
    """Four random columns of each m, for all rows."""
    return torch.rand(cols // m, m, device=device).topk(4, dim=1).indices


def mask_of(rows: int, shared: Tensor, m: int) -> Tensor:
    """A random mask that keeps 2 of each four shared columns."""
    groups = len(shared)
    kept = torch.rand(rows, groups, 4, device=shared.device).topk(2, dim=2).indices
    at = shared.expand(rows, -1, -1).gather(2, kept) + torch.arange(0, groups * m, m, device=shared.device)[:, None]
    return torch.zeros(rows, groups * m, dtype=torch.bool, device=shared.device).scatter_(1, at.view(rows, -1), True)


def pruned(model: nn.Module, mlp: int, device: str, shrink: bool = True) -> dict[str, tuple[Any, int]]:
    """Set weights to zero: 2:mlp in the MLP, 2:4 in the attention. Returns weights by name, with their m.

    Gate and up share columns, as pruning chooses them. 2:8 of down for all rows reads half of the neurons: ``shrink_``
    removes the others, and what is left of down is 2:4.
    """
    shared: dict[str, Tensor] = {}  # by the module that has the layers
    for name, weight in layers_of(model).items():
        m = mlp if ".mlp." in name else 4
        rows, cols = weight.shape
        key = name.rpartition(".")[0].rpartition(".")[0] + str(cols) if ".mlp." in name else name
        shared.setdefault(key, shared_columns(cols, m, device))
        with torch.no_grad():
            weight.parameter.mul_(mask_of(rows, shared[key], m))
    gone = gs.nn.shrink_(model) if mlp != 4 and shrink else {}
    halved = {name.replace(".up_proj", ".down_proj") for name in gone}
    return {
        name: (weight, 4 if ".mlp." not in name or name.removesuffix(".weight") in halved else mlp)
        for name, weight in layers_of(model).items()
    }


def layers_of(model: nn.Module) -> dict[str, Any]:
    """The weights of the layers by their names."""
    return {n: w for n, w in all_weights(model).items() if ".layers." in f".{n}" and len(w.shape) == 2}


def packed(model: nn.Module, mlp: int, device: str) -> None:
    """Our formats in half precision; layers of one input together, as pack_ puts them."""
    for weight, m in pruned(model, mlp, device).values():
        weight.become(weight.dense().clone(), weight.dense() != 0, PackedVNM("all", 2, m))
    together(model, device)


def together(model: nn.Module, device: str) -> None:
    """What pack_ does last: layers that read the same input share a launch."""
    gs.nn.group_(model, {"input_ids": torch.ones(1, 8, dtype=torch.long, device=device), "use_cache": False})


class OneScale(nn.Module):
    """Dense FP8 with one scale for the weight and one for all activations of a call: cuBLAS' fastest kernel."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.abs().amax().float() / 448
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (layer.weight.float() / scale).to(torch.float8_e4m3fn))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        scale = (tokens.abs().amax().float() / 448).clamp_min(1e-12)
        small = (tokens.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(
            small, self.weight.t(), scale_a=scale, scale_b=self.scale, out_dtype=x.dtype, use_fast_accum=True
        )
        return out.view(*x.shape[:-1], -1)


def one_scale(model: nn.Module, device: str) -> None:
    """Dense FP8 as torch's fastest kernel takes it."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(module, name, OneScale(layer))


def cusparselt(model: nn.Module, device: str) -> None:
    """torch's own 2:4."""
    torch.sparse.SparseSemiStructuredTensor._FORCE_CUTLASS = False
    pruned(model, 4, device)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            sparse = torch.sparse.to_sparse_semi_structured(module.weight.detach())
            module.weight = nn.Parameter(sparse, requires_grad=False)


def quantized(model: nn.Module, device: str, mlp: int = 8) -> None:
    """2:mlp and 2:4 in FP8; layers of one input together, as pack_ puts them."""
    pruned(model, mlp, device)
    gs.quantize_(model, "fp8")
    together(model, device)


PLAIN = "dense bf16, transformers' attention"
VARIANTS: dict[str, Callable[[nn.Module, str], Any]] = {
    "dense bf16": lambda model, device: None,
    PLAIN: lambda model, device: None,
    "dense fp8, one scale": one_scale,
    "dense fp8, row scales": lambda model, device: gs.quantize_(model, "fp8"),
    "cuSPARSELt 2:4": cusparselt,
    "2:4": lambda model, device: packed(model, 4, device),
    "2:8 + 2:4": lambda model, device: packed(model, 8, device),
    "2:4 fp8": lambda model, device: quantized(model, device, 4),
    "2:8 + 2:4 fp8": quantized,
}


class Contender:
    """One model, and what calls it: a function for each case and mode."""

    def __init__(self, variant: str, arguments: argparse.Namespace) -> None:
        from transformers import LlamaConfig, LlamaModel

        self.device, small = arguments.device, arguments.tiny
        size = (256, 512, 4, 2) if small else (4096, 14336, 32, 8)
        self.config = LlamaConfig(
            hidden_size=size[0], intermediate_size=size[1], num_attention_heads=size[2], num_key_value_heads=size[3],
            num_hidden_layers=arguments.layers, vocab_size=1024, max_position_embeddings=8192, rope_theta=500000.0,
        )  # fmt: skip
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(self.device):
            self.model: nn.Module = LlamaModel(self.config).eval().requires_grad_(False)
        torch.set_default_dtype(torch.float32)
        if variant != PLAIN:
            gs.hf.grouped_attention_(self.model)
        VARIANTS[variant](self.model, self.device)
        self.calls: dict[tuple[str, str], Callable[[], Any]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.resets: dict[str, Callable[[], None]] = {}
        self.held: list[Any] = []  # what CUDA graphs read

    def prepare(self, case: str, mode: str) -> str:
        """Make the call of a case in a mode; returns why there is none, or nothing."""
        try:
            self.calls[case, mode] = self._call(case, mode)
            gc.collect()
            gc.disable()  # from now on: nothing is collected while calls are timed
            seconds = min(self._timed(case, mode, 1) for _ in range(3))
            self.counts[case, mode] = max(1, min(int(SECONDS / seconds), CACHE - START - 20))
        except Exception as error:  # a rival that can't is left out, and the reason printed
            self.calls.pop((case, mode), None)
            return f"{type(error).__name__}: {str(error)[:300]} {traceback.format_exc()[-600:]}"
        return ""

    def _call(self, case: str, mode: str) -> Callable[[], Any]:
        given, reset = self._inputs(case)
        self.resets[case] = reset
        self.held.append(given)
        if mode == "eager":
            return lambda: self.model(**given)
        if mode == "compiled":
            compiled = torch.compile(self.model.forward, mode="reduce-overhead" if self.device == "cuda" else "default")

            def step() -> Any:
                torch.compiler.cudagraph_mark_step_begin()
                return compiled(**given)

            for _ in range(3):
                step()
            return step
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(2):
                self.model(**given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.model(**given)
        return graph.replay

    def _inputs(self, case: str) -> tuple[dict[str, Any], Callable[[], None]]:
        from transformers import StaticCache

        batch, length = CASES[case]
        ids = torch.randint(1024, (batch, length), device=self.device)
        if length > 1:
            return {"input_ids": ids, "use_cache": True}, lambda: None  # a cache of its own for each call
        cache = StaticCache(config=self.config, max_cache_len=CACHE)
        given = {"input_ids": ids, "past_key_values": cache, "use_cache": True}
        self.model(**given)  # which makes the cache

        def reset() -> None:
            for layer in cache.layers:
                for held in vars(layer).values():
                    if isinstance(held, Tensor) and held.numel() == 1:
                        held.fill_(START)

        reset()
        return given, reset

    def _timed(self, case: str, mode: str, count: int) -> float:
        call, wait = self.calls[case, mode], torch.cuda.synchronize if self.device == "cuda" else lambda: None
        self.resets[case]()
        wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - start) / count

    def measure(self, case: str, mode: str) -> float | None:
        """Seconds of a call, of those of one turn."""
        if (case, mode) not in self.calls:
            return None
        self._timed(case, mode, 2)
        return self._timed(case, mode, self.counts[case, mode])


def work(variant: str, arguments: argparse.Namespace, pipe: Any) -> None:
    """A process: prepares and measures when it is asked."""
    torch.set_num_threads(2)
    begin = time.perf_counter()
    try:
        contender = Contender(variant, arguments)
    except Exception:
        pipe.send(f"{variant}: {traceback.format_exc()[-1500:]}")
        return
    pipe.send(f"{variant}: made in {time.perf_counter() - begin:.0f} s")
    with torch.inference_mode():
        while (asked := pipe.recv()) is not None:
            pipe.send(contender.prepare(*asked[1:]) if asked[0] == "prepare" else contender.measure(*asked[1:]))


def compile_kernels(cases: list[str]) -> None:
    """A process: compile the kernels of ours by all cores at once."""
    with multiprocessing.get_context("fork").Pool() as pool:  # before CUDA is initialised here
        from benchmarks.gpu_common import Wanted, collected, compile_all, pattern
        from gossamer.kernels.vnm.eight import pack8
        from gossamer.kernels.vnm.operators import vnm_of

        wanted: Wanted = {}
        tokens = [batch * length for batch, length in (CASES[case] for case in cases)]
        for rows, cols, m in (*LAYERS, *GATED):
            dense = pattern(rows, cols, m)
            weight, small = gs.from_dense(dense, PackedVNM("all", 2, m)), pack8(dense, m)
            shared, meta, _ = vnm_of(weight.structure)
            with collected(wanted), torch.inference_mode():
                for x in (torch.zeros(count, cols, dtype=torch.bfloat16, device="cuda") for count in tokens):
                    if (rows, cols, m) in GATED:
                        values, narrow = weight.values(), x[:, : cols * 4 // m]  # a trace gathers the columns first
                        two = (values, meta) * 2
                        torch.ops.gossamer.vnm_gated(*two, shared, None, None, narrow, rows, narrow.shape[1], 4, 3)
                        two = (small[0], small[2]) * 2
                        torch.ops.gossamer.vnm_gated(*two, small[1], small[3], small[3], x, rows, cols, m, 3)
                    else:
                        nn.functional.linear(x, weight)
                        torch.ops.gossamer.vnm_8bit(*small[:4], x, None, *small.sizes, 0)
        compile_all(pool, wanted)


def prepare(pipes: dict[str, Any], case: str, mode: str) -> Iterator[tuple[str, str]]:
    """Let all processes prepare at once; yields what went wrong, or nothing."""
    for pipe in pipes.values():
        pipe.send(("prepare", case, mode))
    for variant, pipe in pipes.items():
        yield variant, pipe.recv()


def measured(pipes: dict[str, Any], case: str, mode: str, turns: int) -> dict[str, float]:
    """Milliseconds of each contender that can, of its fastest turn."""
    found: dict[str, list[float]] = {}
    for _ in range(turns * EAGER if mode == "eager" else turns):
        for variant, pipe in pipes.items():
            pipe.send(("measure", case, mode))
            if (seconds := pipe.recv()) is not None:
                found.setdefault(variant, []).append(seconds)
    return {variant: round(1e3 * min(each), 4) for variant, each in found.items()}


def run(arguments: argparse.Namespace) -> None:
    """All contenders in turns; what was measured is written after each case."""
    context = multiprocessing.get_context("spawn")
    if arguments.device == "cuda" and not arguments.tiny:
        first = context.Process(target=compile_kernels, args=(arguments.cases,))
        first.start()
        first.join()
    pipes: dict[str, Any] = {}
    for variant in arguments.variants:
        here, there = context.Pipe()
        context.Process(target=work, args=(variant, arguments, there), daemon=True).start()
        there.close()  # so that a process that dies ends the wait for it
        pipes[variant] = here
    for variant in list(pipes):
        said = pipes[variant].recv()
        print(said, flush=True)
        if "made in" not in said:
            del pipes[variant]
    times: dict[str, dict[str, dict[str, float]]] = {}
    for mode in arguments.modes:
        begin = time.perf_counter()
        for case in arguments.compiled if mode == "compiled" else arguments.cases:
            for variant, said in prepare(pipes, case, mode):
                print(f"{variant}, {case}, {mode}: {said}\n" if said else "", end="", flush=True)
            times.setdefault(mode, {})[case] = measured(pipes, case, mode, arguments.turns)
            arguments.out.write_text(json.dumps({**about(arguments), "ms": times}, indent=1) + "\n")
        print(f"{mode}: {time.perf_counter() - begin:.0f} s", json.dumps(times[mode]), flush=True)
    for pipe in pipes.values():
        pipe.send(None)


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was measured, and on what."""
    import transformers

    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"gpu": gpu, **versions, "layers": arguments.layers, "cache": CACHE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--compiled", nargs="*", default=["1", "16", "64", "2048", "8", "32", "128"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "llm.json")
    arguments = parser.parse_args()
    arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    if not arguments.tables:
        run(arguments)
    write(json.loads(arguments.out.read_text()), not arguments.tiny)


if __name__ == "__main__":
    main()
