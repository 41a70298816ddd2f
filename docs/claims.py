"""Write the figures that the README and the home page quote: ``python docs/claims.py``, after a new run of a benchmark.

Each is computed from a file in benchmarks/results. ``tests/docs/test_claims.py`` compares them with the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
README, HOME = ROOT / "README.md", ROOT / "docs" / "index.md"
PICTURE = ROOT / "docs" / "explanation" / "figures" / "speedups.svg"
HEAD = (
    "| model | machine | with gossamer | speedup over dense float32, float16 or bf16 | over dense int8 or FP8 |\n"
    "|---|---|---|---|---|\n"
)
CPU = "one Zen 4 core"
#: How the name of a rival begins if it computes in eight bits, and how the table shows it.
EIGHT = {
    "onnxruntime int8": "onnxruntime int8",
    "gossamer's own dense int8": "gossamer int8",
    "dense FP8 (one scale)": "FP8, one scale",
    "torch's grouped FP8": "torch's grouped FP8",
}


class Claim(NamedTuple):
    """One speedup: what was run on which machine, and compared with what."""

    model: str
    machine: str
    ours: str
    rival: str
    speedup: float
    rival_ms: float | None = None

    def cell(self) -> str:
        """The rival with its time, and the speedup."""
        name = next((shown for start, shown in EIGHT.items() if self.rival.startswith(start)), self.rival)
        time = "" if self.rival_ms is None else f", {ms(self.rival_ms)}"
        return f"**{self.speedup:.1f}x** ({name}{time})"


def result(name: str) -> Any:
    """Return what a benchmark has measured."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def ms(value: float) -> str:
    """Milliseconds as the table prints them: three digits at most."""
    return f"{value:.1f} ms" if value >= 3 else f"{value:.2f} ms"


def minilm() -> Iterator[Claim]:
    """A pretrained model, end to end, on a CPU."""
    found = result("encoder")["ms"]["1 x 16"]
    ours = found["ours, 2:4 int8, deployed"]
    rivals = {
        "torch float32": "torch float32",
        "onnxruntime float32": "onnxruntime float32",
        "onnxruntime int8 dynamic": "onnxruntime int8",
        "ours, dense int8, deployed": "gossamer's own dense int8",
    }
    for name, rival in rivals.items():
        model = "all-MiniLM-L6-v2, one text of 16 tokens"
        yield Claim(model, CPU, f"2:4 + int8: {ms(ours)}", rival, found[name] / ours, found[name])


def resnet() -> Iterator[Claim]:
    """A convolutional network, end to end, on a CPU."""
    found = result("convnets")["ms"]["resnet50, 1 x 224 x 224, 1 thread"]
    ours = found["ours, 90% int8, deployed"]
    rivals = {
        "torch.compile": "torch.compile float32",
        "onnxruntime": "onnxruntime float32",
        "onnxruntime int8": "onnxruntime int8",
        "ours, dense int8, deployed": "gossamer's own dense int8",
    }
    for name, rival in rivals.items():
        model = "ResNet-50, one image of 224 x 224"
        yield Claim(model, CPU, f"90 % + int8: {ms(ours)}", rival, found[name] / ours, found[name])


def bert() -> Iterator[Claim]:
    """A whole encoder in float32, and its layers in int8."""
    rows = [row for row in result("cpu-avx512")["encoder"] if row["threads"] == row["batch"] == 1]
    us = {row["name"]: row["us"] for row in rows}
    for name, text in {"unstructured 90%": "90 %, float32", "grouped 2:4": "2:4, in groups of rows"}.items():
        yield Claim("BERT-base encoder, 128 tokens", CPU, text, "torch float32", us["dense"] / us[name])
    for percent in (75, 90):
        text = f"{percent} % (n:m) + int8"
        yield Claim("linear layers of BERT-base, 128 tokens", CPU, text, "onnxruntime int8", int8_layers(percent))


def int8_layers(percent: int) -> float:
    """How much faster int8 layers with n:m are than onnxruntime's, by the geometric mean over the shapes."""
    rows = [row["us"] for row in result("int8")["rows"] if (row["threads"], row["tokens"]) == (1, 128)]
    return geometric_mean(us["onnxruntime int8"] / us[f"n:m|{percent}|int8 lookup"] for us in rows)


def llama() -> Iterator[Claim]:
    """Layers of a language model on a GPU, compiled."""
    found = result("llm")["ms"]["compiled"]
    for tokens, model in {"1": "Llama-8B layers (6 of 32), 1 token, compiled", "2048": "the same, 2048 tokens"}.items():
        ours = found[tokens]["2:4 fp8"]
        for name, rival in {"dense bf16": "torch bf16", "dense fp8, one scale": "dense FP8 (one scale)"}.items():
            time = found[tokens][name]
            yield Claim(model, "H200", f"2:4 + FP8: {ms(ours)}", rival, time / ours, time)


def experts() -> Iterator[Claim]:
    """A layer of experts on a GPU, compiled."""
    rows = result("experts-gpu")["rows"]
    us = next(row["us"] for row in rows if (row["size"], row["tokens"]) == ("Mixtral 8x7B", 64))
    model, ours = "Mixtral 8x7B, experts of one layer, 64 tokens, compiled", us["2:4 fp8, compiled"] / 1e3
    for name, rival in {"grouped_mm": "torch grouped_mm bf16", "dense fp8": "torch's grouped FP8"}.items():
        time = us[f"{name}, compiled"] / 1e3
        yield Claim(model, "H200", f"2:4 + FP8: {ms(ours)}", rival, time / ours, time)


def products() -> Iterator[Claim]:
    """Products on sparse tensor cores."""
    found = result("gpu-h200")
    yield Claim(
        "MLP block 4096-14336-4096, 4096 tokens", "H200", "2:8, float16", "cuBLAS float16", found["mlp"][0]["gain"]
    )
    cube = next(row for row in found["products"] if row["shape"] == [4096] * 3 and row["m"] == 4)
    model = "matrix product 4096 x 4096 x 4096"
    yield Claim(model, "H200", "2:4", "cuBLAS float16", cube["gain"])
    yield Claim(model, "H200", "2:4", "cuSPARSELt 2:4", found["cusparselt"]["4096x4096x4096"] / cube["packed"])


def shown() -> list[Claim]:
    """Return the claims of the README: for each model, what a user would run and all that it is compared with."""
    encoder, _, layers, _ = bert()
    mlp, *_ = products()
    return [*minilm(), *resnet(), encoder, layers, *llama(), *experts(), mlp]


def table() -> str:
    """Return the first table of the README: one line for each model, rivals in eight bits in the last column."""
    rows: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for claim in shown():
        wide, eight = rows.setdefault(claim[:3], ([], []))
        (eight if claim.rival.startswith(tuple(EIGHT)) else wide).append(claim.cell())
    cells = ([*key, ", ".join(wide), ", ".join(eight)] for key, (wide, eight) in rows.items())
    return HEAD + "".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|\n" for line in cells)


def numbers() -> list[str]:
    """Return the three numbers of the home page, in their order."""
    encoder, int8, mlp = next(bert()).speedup, int8_layers(75), next(products()).speedup
    return [f"{speedup:.1f}x" for speedup in (encoder, int8, mlp)]


def bars() -> list[tuple[str, float]]:
    """Return what the picture of the home page shows: a label, and a speedup."""
    first, _, third, _ = minilm()
    encoder, grouped, *layers = bert()
    token, _, prompt, _ = llama()
    mlp, *_ = products()
    return [
        ("MiniLM, 2:4 + int8, over torch float32", first.speedup),
        ("MiniLM, 2:4 + int8, over onnxruntime int8", third.speedup),
        ("BERT-base, 90 %, over torch float32", encoder.speedup),
        ("BERT-base, 2:4, over torch float32", grouped.speedup),
        ("linear layers, 90 % + int8, over onnxruntime int8", layers[1].speedup),
        ("linear layers, 75 % + int8, over onnxruntime int8", layers[0].speedup),
        ("GPU: Llama-8B layers, 2:4 + FP8, 1 token, over bf16", token.speedup),
        ("GPU: Llama-8B layers, 2:4 + FP8, 2048 tokens, over bf16", prompt.speedup),
        ("GPU: MLP block, 2:8, over float16", mlp.speedup),
    ]


def picture() -> str:
    """Return the bars as SVG, in the colours of the page. Labels are above the bars, to be readable on a phone."""
    shown, width, step = bars(), 480, 37
    scale = (width - 50) / max(speedup for _, speedup in shown)
    about = "Speedups of sparse models over dense ones"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {step * len(shown)}" role="img" '
           f'aria-label="{about}" font-family="inherit" font-size="13" fill="currentColor" '
           'style="max-width: 36rem">']  # fmt: skip
    for i, (label, speedup) in enumerate(shown):
        y, long = step * i, scale * speedup
        colour = "var(--md-accent-fg-color)" if label.startswith("GPU") else "var(--md-primary-fg-color)"
        out.append(f'<text x="0" y="{y + 12}">{label}</text>')
        out.append(f'<rect x="0" y="{y + 18}" width="{long:.1f}" height="11" rx="2" style="fill: {colour}"/>')
        out.append(f'<path d="M{scale:.1f} {y + 16}v15" stroke="currentColor" opacity="0.5"/>')  # dense
        out.append(f'<text x="{long + 6:.1f}" y="{y + 28}" font-weight="bold">{speedup:.1f}x</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Replace the figures on both pages, and draw the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")
    page = README.read_text(encoding="utf-8")
    README.write_text(re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: table(), page), encoding="utf-8")
    new = iter(numbers())
    home = HOME.read_text(encoding="utf-8")
    HOME.write_text(re.sub(r"^- \*\*[\d.]+x\*\*$", lambda _: f"- **{next(new)}**", home, flags=re.M), encoding="utf-8")


if __name__ == "__main__":
    main()
