"""ResNet-18 and ResNet-50 as a whole on a CPU, unstructured: ours against torch, torch.compile and onnxruntime.

    python benchmarks/convnets.py                                  all of it: results/convnets.json, tables of the docs
    python benchmarks/convnets.py --models resnet18 --batches 1 --threads 1     a part of it, which replaces that part
    python benchmarks/convnets.py --machine xeon                   figures and tables of another machine, beside these

Milliseconds of a call with images of 224 x 224, the fastest of interleaved calls: CPU time with one thread, so that
other programs don't count, else wall time. Weights and statistics of the batch norms are random, because values make no
difference; every convolution and the last layer are pruned by magnitude. "folded": batch norms are part of the
convolutions before them, by torch.fx, which onnxruntime and torch.compile (with freezing) do by themselves. In eight
bits: onnxruntime by its static quantization (unsigned activations, which are faster than signed ones here, and a scale
for each output), ours with a range for each image at run time, from ``gs.quantize_`` and ``gs.deploy``, with images in
the channels_last format, one by one (a whole batch takes a third longer: it doesn't fit into the cache). glibc keeps
the memory of results (``$MALLOC_TRIM_THRESHOLD_``), as onnxruntime does by itself; otherwise the system takes it back
after each call, and page faults are a third of the time. Layers: what ``pack_`` measures for one image and one thread.
It needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime as ort
import torch
import turns
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch.fx.experimental.optimization import fuse

import gossamer as gs
from gossamer.models import PackReport

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parents[1] / "docs" / "explanation"
SPARSITY = "90%"
EIGHT_BITS = (None, "50%", "75%", "90%")  # sparsities of the forms in eight bits
_SECONDS, _MOST = 2.0, 40  # for each form, and calls of it
_FEWEST = 5
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}


# -- the networks, as torchvision has them


class Block(nn.Module):
    """Convolutions with batch norms and ReLU, and a way around them."""

    def __init__(self, inputs: int, sizes: list[tuple[int, int]], stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width, moves = inputs, [k for _, k in sizes].index(3)  # the first 3 x 3 has the stride
        for i, (outputs, kernel) in enumerate(sizes):
            step = stride if i == moves else 1
            layers += [nn.Conv2d(width, outputs, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]
            layers += [nn.ReLU(inplace=True)] if i + 1 < len(sizes) else []
            width = outputs
        self.layers, self.relu = nn.Sequential(*layers), nn.ReLU(inplace=True)
        same = stride == 1 and inputs == width
        around = [nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
        self.around = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.layers(x) + self.around(x))


class ResNet(nn.Sequential):
    """Four stages of blocks."""

    def __init__(self, counts: tuple[int, ...], bottleneck: bool) -> None:
        first = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        width, blocks = 64, []
        for stage, count in enumerate(counts):
            c = 64 << stage
            sizes = [(c, 1), (c, 3), (4 * c, 1)] if bottleneck else [(c, 3), (c, 3)]
            for i in range(count):
                blocks.append(Block(width, sizes, 2 if stage and not i else 1))
                width = sizes[-1][0]
        super().__init__(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: ResNet((3, 4, 6, 3), bottleneck=True),
}


def network(name: str, sparsity: str | None = SPARSITY) -> nn.Module:
    """Return a network with statistics in its batch norms; the same values for every sparsity."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    if sparsity is None:
        return model
    return gs.densify_(gs.sparsify_(model, sparsity))  # the zeros are there; its layers are torch's


# -- what is compared


class Batches(CalibrationDataReader):
    """Four random batches for onnxruntime's static quantization."""

    def __init__(self, shape: torch.Size) -> None:
        self.left = [torch.randn(shape).numpy() for _ in range(4)]

    def get_next(self) -> dict[str, Any] | None:
        return {"x": self.left.pop()} if self.left else None


def session(model: nn.Module, x: Tensor, threads: int, int8: bool = False) -> Callable[[Tensor], Tensor]:
    """Return the model in onnxruntime."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, input_names=["x"])
        if int8:
            quant_pre_process(path, f"{folder}/plain.onnx")
            kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
            path = f"{folder}/int8.onnx"
            quantize_static(f"{folder}/plain.onnx", path, Batches(x.shape), quant_format=QuantFormat.QDQ, **kinds)
        made = ort.InferenceSession(path, turns.session_options(threads), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(made.run(None, {"x": images.numpy()})[0])


def packed(model: nn.Module, x: Tensor) -> tuple[nn.Module, PackReport]:
    """Return a copy with packed layers, and what was measured."""
    made = copy.deepcopy(model)
    return made, gs.pack_(made, x, quiet=True)


def in_eight_bits(name: str, sparsity: str | None, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a network in eight bits, deployed; images are computed one by one, because one fits into the cache."""
    model = gs.quantize_(fuse(network(name, sparsity)), "int8")
    images = [image[None].contiguous(memory_format=torch.channels_last) for image in x]
    gs.pack_(model, images[0], quiet=True)
    with TemporaryDirectory() as folder:
        served = gs.deploy(model, images[0], f"{folder}/model.pt2", tolerance=0.05)
    return lambda _: torch.cat([served(image) for image in images])


def forms(name: str, x: Tensor, threads: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return all that compute a network; those in float32 the same one."""
    dense = network(name)
    folded = fuse(copy.deepcopy(dense))
    ours, ours_folded = packed(dense, x)[0], packed(folded, x)[0]
    return {
        "torch": dense,
        "torch, folded": folded,
        "torch.compile": torch.compile(copy.deepcopy(dense)),
        "onnxruntime": session(dense, x, threads),
        "onnxruntime int8": session(dense, x, threads, int8=True),
        "ours": ours,
        "ours, folded": ours_folded,
        "ours, torch.compile": torch.compile(copy.deepcopy(ours_folded)),
        **{f"ours, {s or 'dense'} int8, deployed": in_eight_bits(name, s, x) for s in EIGHT_BITS},
    }


def times(all_forms: dict[str, Callable[[Tensor], Tensor]], x: Tensor, threads: int) -> dict[str, float]:
    """Return milliseconds of each form; those in float32 must give the result of the first (others: ``gs.deploy``)."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    expected = next(iter(all_forms.values()))(x)
    for name, form in all_forms.items():
        if "int8" not in name:
            torch.testing.assert_close(form(x), expected, rtol=1e-2, atol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
    best, spent = dict.fromkeys(all_forms, float("inf")), dict.fromkeys(all_forms, 0.0)
    for turn in range(_MOST):
        for name, form in all_forms.items():
            if turn >= _FEWEST and spent[name] > _SECONDS:
                continue
            if threads > 1:
                turns.begin(lambda form=form: form(x))
            start = clock()
            form(x)
            seconds = clock() - start
            best[name], spent[name] = min(best[name], seconds), spent[name] + seconds
    return {name: round(seconds * 1e3, 2) for name, seconds in best.items()}


def layers(name: str) -> Iterator[dict[str, Any]]:
    """Return what each kind of layer takes, for one image and one thread."""
    model, report = packed(network(name), torch.randn(1, 3, 224, 224))
    for row in report.layers:
        stride, _ = getattr(model.get_submodule(row.name.removesuffix(".weight")), "stride", (1, 1))
        kind = {"shape": list(row.shape), "stride": stride, "pixels": row.tokens[0]}
        yield {**kind, "dense us": round(row.dense_us), "us": round(row.us)}


# -- results


def measured(name: str, batch: int, threads: int) -> dict[str, float]:
    """Return the times of all forms of a network."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.compiler.reset()
    x = torch.randn(batch, 3, 224, 224)
    return times(forms(name, x, threads), x, threads)


def tables(found: dict[str, Any], stem: str) -> dict[str, str]:
    """Return the tables of the docs, by the names of their files."""
    columns = list(found["ms"])
    rows = ["| ms | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for form in dict.fromkeys(form for each in found["ms"].values() for form in each):
        figures = (f"{each[form]:.1f}" if form in each else "" for each in found["ms"].values())
        rows.append(f"| {form} | {' | '.join(figures)} |")
    kinds = ["| weight | stride | pixels | dense us | packed us | gain |", "|---|--:|--:|--:|--:|--:|"]
    for row in found["layers"]:
        shape = " x ".join(map(str, row["shape"]))
        gain = row["dense us"] / row["us"]
        kinds.append(f"| {shape} | {row['stride']} | {row['pixels']} | {row['dense us']} | {row['us']} | {gain:.1f} |")
    return {f"{stem}-table.txt": "\n".join(rows) + "\n", f"{stem}-layers-table.txt": "\n".join(kinds) + "\n"}


def kept(path: Path, part: str, new: Any) -> dict[str, Any]:
    """Write a part of the results into the file, beside what is there; return all."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"ms": {}, "layers": []}
    found |= {"torch": torch.__version__, "onnxruntime": ort.__version__}
    found[part] = found[part] | new if isinstance(new, dict) else new
    found["ms"] = dict(sorted(found["ms"].items()))
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--machine", help="its name in the files of results and tables, if it is another one")
    options = parser.parse_args()
    stem = f"convnets-{options.machine}" if options.machine else "convnets"
    out = RESULTS / f"{stem}.json"
    if _MALLOC.items() - os.environ.items():  # a process for each: they are read once
        for threads in options.threads:
            command = [sys.executable, __file__, "--threads", str(threads)]
            command += ["--models", *options.models, "--batches", *map(str, options.batches)]
            command += ["--machine", options.machine] if options.machine else []
            subprocess.run(command, check=True, env={**os.environ, **_MALLOC, "OMP_NUM_THREADS": str(threads)})
        return
    warnings.simplefilter("ignore")  # of torch.onnx and torch.compile
    inductor.freezing = True
    (threads,) = options.threads
    for name in options.models:
        for batch in options.batches:
            found = measured(name, batch, threads)
            print(name, batch, threads, found, flush=True)
            kept(out, "ms", {f"{name}, {batch} x 224 x 224, {threads} thread{'s' * (threads > 1)}": found})
    if threads == 1:
        kinds = {repr(list(row.values())[:3]): row for name in options.models for row in layers(name)}
        kept(out, "layers", list(kinds.values()))
    for file, text in tables(json.loads(out.read_text()), stem).items():
        (TABLES / file).write_text(text)


if __name__ == "__main__":
    main()
