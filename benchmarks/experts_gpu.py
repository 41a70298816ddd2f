"""Experts of a mixture of experts on a GPU: packed 2:4 and 2:8 in bf16 and FP8, against dense ones.

    python benchmarks/experts_gpu.py             writes results/experts-gpu.json and docs/recipes/moe-gpu-table.md
    python benchmarks/experts_gpu.py --tiny      small sizes on any machine: does it still run?

One module of experts, bf16, random weights, masks and routing: the sizes of Mixtral 8x7B and of Qwen3-30B-A3B. Times
are those of CUDA graphs of the eager module: sorting tokens by expert, both products, activation, and the weighted sum.
``compiled`` is the same under ``torch.compile``. Rivals are the implementations of transformers that a graph can
capture: ``grouped_mm`` (torch's grouped matrix product), and for few tokens ``batched_mm``. The rival of FP8 is torch's
grouped product of e4m3 (``torch._scaled_grouped_mm``) with a scale for each row and token; inductor makes one kernel of
the rounding of its tokens, and sorting and weighting are those of the sparse experts.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.llm import mask_of, shared_columns  # noqa: E402
from gossamer.core.tensor import SparseTensor  # noqa: E402
from gossamer.formats import PackedVNM, Structure  # noqa: E402
from gossamer.kernels.quantized.stack import layout_of, stacked  # noqa: E402
from gossamer.kernels.quantized.weight import Arrays  # noqa: E402
from gossamer.kernels.vnm.eight import quantize, round8  # noqa: E402
from gossamer.models.grouped import format_of, grouped, names_of  # noqa: E402
from gossamer.models.pack.graphs import replayed  # noqa: E402
from gossamer.models.quantized_experts import quantized_experts  # noqa: E402
from gossamer.models.quantized_stack import QuantizedStack  # noqa: E402
from gossamer.models.weights import all_weights  # noqa: E402

#: Features, features inside, experts, and how many of them a token goes to.
SIZES = {"Mixtral 8x7B": (4096, 14336, 8, 2), "Qwen3-30B-A3B": (2048, 768, 128, 8)}
TINY = {"tiny": (64, 128, 4, 2)}
TOKENS = (1, 4, 16, 64, 256, 2048)
COMPILED = {"Mixtral 8x7B": (1, 64)}
FP8 = "dense fp8"
BATCHED = 4  # with more tokens, copies of the weights don't fit into memory
TABLE = HERE.parent / "docs" / "recipes" / "moe-gpu-table.md"


def experts_of(size: tuple[int, int, int, int]) -> Any:
    """A module of experts with random weights, in bf16."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    hidden, width, count, chosen = size
    config = MixtralConfig(
        hidden_size=hidden, intermediate_size=width, num_local_experts=count, num_experts_per_tok=chosen,
        num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1, experts_implementation="grouped_mm",
    )  # fmt: skip
    module = MixtralExperts(config).to(DEVICE, torch.bfloat16).eval().requires_grad_(False)
    for weight in module.parameters():
        weight.normal_(std=0.02)
    return module


def two_experts(rows: int, cols: int, m: int) -> list[Tensor]:
    """Random 2:m weights of two experts, which stand for all in turn: times do not depend on values."""
    masks = [mask_of(rows, shared_columns(cols, m, DEVICE), m) for _ in range(2)]
    return [(torch.randn(rows, cols, device=DEVICE) * 0.02 * mask).bfloat16() for mask in masks]


def packed(like: Any, m: int) -> Any:
    """The same sizes with random 2:m weights."""
    module = copy.deepcopy(like)
    for weight in list(all_weights(module).values()):
        count, rows, cols = weight.shape
        made = [gs.from_dense(dense, PackedVNM("all", 2, m)) for dense in two_experts(rows, cols, m)]
        weight.become(below_each_other(made * (count // 2), rows, m))
    return module


def small(like: Any, m: int) -> Any:
    """The same in FP8, as by ``gs.quantize_``."""
    stacks = {}
    for name in names_of(like):
        count, rows, cols = getattr(like, name).shape
        layout = layout_of("fp8", rows, m)
        values, scale, shared, meta = stacked(torch.stack(two_experts(rows, cols, m)), layout)
        times = count // 2
        arrays = Arrays(
            in_turn(values.view(torch.uint8), cols, m, times).view(values.dtype), scale.repeat(times),
            None if shared is None else shared.repeat(times, 1, 1), in_turn(meta, cols, m, times),
        )  # fmt: skip
        stacks[name] = arrays, QuantizedStack(layout, (count, rows, cols))
    return quantized_experts(like, type(like), stacks, torch.bfloat16).eval()


def in_turn(array: Tensor, cols: int, m: int, times: int) -> Tensor:
    """Values or metadata of two experts, several times: of each step, the tiles of all."""
    return array.view(-(-cols // (32 * m)), 1, -1).repeat(1, times, 1).view(-1)


class DenseFP8(torch.nn.Module):
    """Dense experts in e4m3 by torch's grouped product."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.num_experts, self.has_gate, self.act_fn = like.num_experts, True, like.act_fn
        for name in names_of(like):
            each = [round8(weight, torch.float8_e4m3fn) for weight in getattr(like, name)]
            values = torch.stack([values.view(torch.uint8) for values, _ in each])
            self.register_buffer(f"{name}_values", values.view(torch.float8_e4m3fn))
            self.register_buffer(f"{name}_scale", torch.stack([scale for _, scale in each]))

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def forward(self, x: Tensor, index: Tensor, shares: Tensor) -> Tensor:
        return grouped(self, x, index, shares, by_torch)


def by_torch(experts: Any, name: str, x: Tensor, token: Tensor | None, own: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row by its expert, in e4m3."""
    values, scales = rounded_tokens(x if token is None else x[token])
    weight, scale = getattr(experts, f"{name}_values"), getattr(experts, f"{name}_scale")
    if not x.is_cuda:  # there is no such product: the same numbers
        out = torch.zeros(len(values), weight.shape[1])
        for number, (begin, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            out[begin:end] = values[begin:end].float() @ weight[number].float().t() * scale[number]
        return (out * scales[:, None]).to(x.dtype)
    return torch._scaled_grouped_mm(
        values, weight.transpose(1, 2), scales, scale, ends, out_dtype=x.dtype, use_fast_accum=True
    )


def rounded_tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3, and a scale for each token; one kernel on a GPU, also in eager mode."""
    return _quantize(x, None, x.shape[1], 4, torch.float8_e4m3fn)


def below_each_other(parts: list[SparseTensor], rows: int, m: int) -> SparseTensor:
    """All experts as one stack: of each step, the tiles of all of them."""
    tiles, shape = rows // 64, torch.Size((len(parts), *parts[0].shape))

    def joined(each: list[Tensor], of_a_tile: int) -> Tensor:
        return torch.cat([one.view(-1, tiles, of_a_tile) for one in each], 1).reshape(-1)

    arrays = {
        "cols2": torch.cat([part.structure.arrays["cols1"] for part in parts[: 1 if m == 4 else None]]),
        "meta2": joined([part.structure.arrays["meta1"] for part in parts], 128),
    }
    values = joined([part.values() for part in parts], 2048)
    return SparseTensor(values, Structure(format_of(rows, m), shape, arrays, values.device))


def routing(tokens: int, count: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Different experts for each token, at random, and their shares."""
    index = torch.rand(tokens, count, device=DEVICE).topk(chosen, 1).indices
    return index, torch.full((tokens, chosen), 1 / chosen, device=DEVICE, dtype=torch.bfloat16)


def contenders(size: tuple[int, int, int, int]) -> dict[str, Any]:
    """Modules by name."""
    dense = experts_of(size)
    batched = copy.copy(dense)
    batched.config = copy.copy(dense.config)
    batched.config._experts_implementation = "batched_mm"
    made = {"grouped_mm": dense, "batched_mm": batched, "2:4": packed(dense, 4), "2:8": packed(dense, 8)}
    made |= {"2:4 fp8": small(dense, 4), "2:8 fp8": small(dense, 8), FP8: DenseFP8(dense)}
    return made


def measured(name: str, size: tuple[int, int, int, int], counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Microseconds of every contender, for each number of tokens."""
    everyone, rows = contenders(size), []
    for tokens in counts:
        given = torch.randn(tokens, size[0], device=DEVICE, dtype=torch.bfloat16), *routing(tokens, *size[2:])
        if FP8 in everyone and not runs(partial(everyone[FP8], *given)):
            del everyone[FP8]
        calls: dict[str, list[Callable[[], Any]]] = {
            who: [partial(module, *given)]
            for who, module in everyone.items()
            if who != "batched_mm" or tokens <= BATCHED
        }
        if tokens in COMPILED.get(name, ()):
            for who in [who for who in everyone if who != "batched_mm"]:
                torch._dynamo.reset()
                made = torch.compile(everyone[who].forward, fullgraph=True, dynamic=False)
                if who != FP8 or runs(partial(made, *given)):
                    calls[f"{who}, compiled"] = [partial(made, *given)]
        us = {who: round(1e6 * seconds, 1) for who, seconds in replayed(calls).items()}
        rows.append({"size": name, "tokens": tokens, "us": us})
        print(rows[-1], f"after {time.perf_counter() - BEGIN:.0f} s", flush=True)
    return rows


def runs(call: Callable[[], Any]) -> bool:
    """Does this torch, on this GPU, compute it?"""
    try:
        call()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        print(f"{FP8}: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def table(rows: list[dict[str, Any]]) -> str:
    """Gains over the fastest dense implementation, of bf16 and of FP8; compiled ones over compiled ones."""
    lines = [
        "| experts | tokens | dense, us | 2:4 | 2:8 | dense FP8, us | 2:4 FP8 | 2:8 FP8 |", "|---|" + "--:|" * 7
    ]  # fmt: skip
    for row in rows:
        us = row["us"]
        names = {"": [name for name in ("grouped_mm", "batched_mm") if name in us]}
        if "grouped_mm, compiled" in us:
            names[", compiled"] = ["grouped_mm, compiled"]
        for how, dense in names.items():
            cells = gains(us, min(us[name] for name in dense), [f"2:4{how}", f"2:8{how}"])
            cells += gains(us, us.get(f"{FP8}{how}"), [f"2:4 fp8{how}", f"2:8 fp8{how}"])
            lines.append(f"| {row['size']} | {row['tokens']}{how} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains(us: dict[str, float], rival: float | None, names: list[str]) -> list[str]:
    """Microseconds of a rival and how many times as fast others are; without a rival, their microseconds."""
    if rival is None:
        return ["", *(f"{us[name]:,.0f} us" for name in names)]
    return [f"{rival:,.0f}", *(f"{rival / us[name]:.2f}x" for name in names)]


def tried() -> None:
    """Do all contenders give the same as a plain loop over their dense weights?"""
    for name, module in contenders(TINY["tiny"]).items():
        x, (index, shares) = torch.randn(9, 64, device=DEVICE, dtype=torch.bfloat16), routing(9, 4, 2)
        if name == FP8 and not runs(partial(module, x, index, shares)):
            continue
        plain = decoded(module) if name == FP8 else gs.densify_(copy.deepcopy(module))
        plain.config._experts_implementation = "eager"
        with torch.no_grad():
            exact = plain(x, index, shares)
            torch.testing.assert_close(module(x, index, shares), exact, rtol=0, atol=0.06 * float(exact.abs().max()))
        print(f"{name}: as the plain loop")


def decoded(experts: DenseFP8) -> Any:
    """Experts of transformers with the same weights."""
    module = experts_of(TINY["tiny"])
    for name in names_of(module):
        values, scale = getattr(experts, f"{name}_values"), getattr(experts, f"{name}_scale")
        getattr(module, name).copy_(values.float() * scale[:, :, None])
    return module


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "experts-gpu.json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tried()
    if arguments.tiny:
        return
    rows = []
    with torch.no_grad():
        for name, size in SIZES.items():
            rows += measured(name, size, TOKENS)
            torch.cuda.empty_cache()
    print(table(rows))
    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    TABLE.write_text(table(rows) + "\n")


BEGIN = time.perf_counter()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_quantize = torch.compile(quantize, dynamic=True) if DEVICE == "cuda" else quantize

if __name__ == "__main__":
    main()
