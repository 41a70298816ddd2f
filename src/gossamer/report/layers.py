"""The layers of a model: their contents, their times, dense and sparse, and which kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import native
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Masked
from gossamer.formats.packed import PackedRows
from gossamer.models.int8 import Int8Linear
from gossamer.models.int8_conv import DynamicInt8Conv
from gossamer.models.modules import dense_class
from gossamer.models.names import LAYERS, inputs_first
from gossamer.models.pack.examples import examples_of, shapes_of
from gossamer.models.pack.layers import OF_IMAGES, call_of, tokens_of
from gossamer.models.quantize import QUANTIZED
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.quantized_experts import quantized_weights
from gossamer.models.quantized_stack import ExpertsWeight
from gossamer.models.weights import all_weights
from gossamer.ops.explain import explain
from gossamer.ops.sparsify import apply_mask
from gossamer.patterns import describe
from gossamer.report.masks import Picture, picture
from gossamer.report.timing import interleaved

Call = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Timed:
    """One layer at one number of tokens: microseconds."""

    case: str
    tokens: int
    dense_us: float
    us: float

    @property
    def gain(self) -> float:
        """How many times faster than dense."""
        return self.dense_us / self.us


@dataclass(frozen=True)
class LayerFacts:
    """One weight of a model.

    Examples
    --------
    >>> fact = LayerFacts("", "fc.weight", (8, 8), "2:4", "CSR()", 0.5, 32, 140, 256, "linear", "native", ())
    >>> fact.flops(10), fact.intensity(10)
    (640, 0.8205128205128205)
    """

    model: str
    name: str
    shape: tuple[int, ...]
    pattern: str
    format: str
    sparsity: float
    kept: int
    bytes: int
    dense_bytes: int
    kernel: str
    why: str
    times: tuple[Timed, ...]
    mask: Picture | None = None

    @property
    def size(self) -> int:
        """How many values a dense weight of the shape has."""
        return torch.Size(self.shape).numel()

    def flops(self, tokens: int, dense: bool = False) -> int:
        """Multiplications and additions for this number of tokens."""
        return 2 * tokens * (self.size if dense else self.kept)

    def intensity(self, tokens: int, dense: bool = False) -> float:
        """Operations for each byte of weight, input and output."""
        each = self.dense_bytes / max(self.size, 1)
        moved = tokens * (self.shape[0] + self.size / max(self.shape[0], 1)) * each
        return self.flops(tokens, dense) / max((self.dense_bytes if dense else self.bytes) + moved, 1)


#: Layers and weights of experts that are not rebuilt from a tensor: they know their layout.
_WITH_LAYOUT = (*QUANTIZED, ExpertsWeight)


@dataclass(frozen=True)
class Weight:
    """A weight to report on, and how a layer would use it: for each case the shape of its input."""

    name: str
    value: Tensor
    call: Call
    cases: tuple[tuple[str, int, tuple[int, ...]], ...]  # title, tokens, shape
    turned: bool = False  # inputs first, as the Conv1D of transformers has them
    eight: Any = None  # the layer, if it has values of 8 or 4 bits with scales

    def dense(self) -> Tensor:
        """Return what a dense layer would multiply with, [outputs, inputs] for those in eight bits."""
        if self.eight is not None:
            return self.eight.weight if isinstance(self.eight, _WITH_LAYOUT) else self.eight.dense()
        return self.value.to_dense() if isinstance(self.value, SparseTensor) else self.value

    def stored(self) -> tuple[str, int]:
        """Return how it is stored, and in how many bytes."""
        if isinstance(self.eight, _WITH_LAYOUT):
            return str(self.eight.layout), self.eight.nbytes
        if not isinstance(self.value, SparseTensor):
            return "Dense()", self.value.nbytes
        return f"{self.value.format}{' int8' * (self.eight is not None)}", self.value.nbytes


def weights_of(model: nn.Module, tokens: Sequence[int], example: Any = None) -> Iterator[Weight]:
    """Yield the weights of linear and convolution layers, and every other sparse one, each once."""
    weights = all_weights(model)
    measured = {n: w for n, w in weights.items() if n.endswith("weight") and _is_measured(w.module)}
    places = {name: [m for m, _ in weight.places] for name, weight in measured.items()}
    small = {f"{n}.weight".lstrip("."): layer for n, layer in model.named_modules() if isinstance(layer, QUANTIZED)}
    seen = shapes_of(model, examples_of(example), places | {name: [layer] for name, layer in small.items()})
    for name, weight in weights.items():
        module: Any = weight.module if name in measured else None
        if not (weight.is_sparse or (weight.places[0][1] == "weight" and _is_layer(weight.module))):
            continue
        value = weight.sparse() if weight.is_sparse else weight.dense()
        turned = module is not None and inputs_first(module)
        cases: list[tuple[str, int, tuple[int, ...]]] = []
        if module is not None and not isinstance(module, OF_IMAGES):
            cases += [(_title(n), n, (n, value.shape[0 if turned else 1])) for n in tokens]
        if module is not None:
            cases += [("the example", tokens_of(module, s), s) for s in sorted(seen.get(name, ()))[:1]]
        eight = weight.module if isinstance(weight.module, Int8Linear) else None
        if eight is not None:
            cases += [(_title(n), n, (n, eight.in_features)) for n in tokens]
        call: Call = F.linear if module is None else call_of(module)
        yield Weight(name, value, call, tuple(cases), turned or (eight is not None and eight.inputs_first), eight)
    for name, layer in small.items():
        masked: Any = apply_mask(layer.weight, layer.mask(), Masked())
        if isinstance(layer, DynamicInt8Conv):
            images = tuple(("the example", layer.tokens(s), s) for s in sorted(seen.get(name, ()))[:1])
            yield Weight(name, masked, call_of(layer.as_dense()), images, eight=layer)
        else:
            sizes = tuple((_title(n), n, (n, layer.shape[1])) for n in tokens)
            yield Weight(name, masked, F.linear, sizes, eight=layer)
    for name, experts in quantized_weights(model).items():
        masked = apply_mask(experts.weight, experts.mask(), Masked())
        yield Weight(name, masked, F.linear, (), eight=experts)


def _is_measured(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *OF_IMAGES)) or inputs_first(module)


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, LAYERS) or inputs_first(module)


def weights_in(tensors: Mapping[str, Tensor], tokens: Sequence[int]) -> Iterator[Weight]:
    """Yield the matrices among named tensors of a file, as weights of linear layers."""
    for name, value in tensors.items():
        if value.dim() >= 2 and (value.is_floating_point() or isinstance(value, SparseTensor)):
            linear = value.dim() == 2 and value.is_floating_point() and "embed" not in name
            cases = [(_title(n), n, (n, value.shape[1])) for n in tokens] if linear else []
            yield Weight(name, value.detach(), F.linear, tuple(cases))


def _title(tokens: int) -> str:
    return f"{tokens:,} token{'s' * (tokens != 1)}"


def facts(weight: Weight, model: str, seconds: float, drawn: bool) -> LayerFacts:
    """Examine one weight, and measure it for `seconds` per case and format; 0: don't measure."""
    value = weight.value
    sparse = isinstance(value, SparseTensor)
    dense, (format, stored) = weight.dense(), weight.stored()
    mask = value.mask() if isinstance(value, SparseTensor) else value != 0
    matrix = mask.t() if weight.turned else mask.flatten(1) if mask.dim() > 1 else mask.reshape(1, -1)
    kept, size = int(mask.sum()), max(mask.numel(), 1)
    pattern = describe(matrix) if sparse or kept < 0.7 * size else "dense"
    kernel, why = _kernel(weight)
    return LayerFacts(
        model,
        weight.name,
        tuple(value.shape),
        pattern,
        format,
        1 - kept / size,
        kept if sparse else dense.numel(),
        stored,
        dense.numel() * dense.element_size(),
        kernel,
        why,
        tuple(_measured(weight, dense, seconds)) if seconds else (),
        picture(matrix) if drawn and pattern != "dense" else None,
    )


def _measured(weight: Weight, dense: Tensor, seconds: float) -> Iterator[Timed]:
    with torch.no_grad():
        for title, tokens, shape in weight.cases:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dense)
            calls = {"dense": partial(weight.call, x, dense)}
            if weight.eight is not None:
                calls["sparse"] = partial(weight.eight, x)
            elif isinstance(weight.value, SparseTensor) and weight.value.format != Masked():  # which computes as dense
                calls["sparse"] = partial(weight.call, x, weight.value)
            times = interleaved(calls, seconds)
            yield Timed(title, tokens, times["dense"] * 1e6, times.get("sparse", times["dense"]) * 1e6)


def _kernel(weight: Weight) -> tuple[str, str]:
    """Which function runs for the first case, and why."""
    value = weight.value
    if not isinstance(value, SparseTensor):
        return "torch", "the weight is dense"
    if isinstance(weight.eight, QuantizedLinear | ExpertsWeight):
        said = weight.eight.explain(weight.value)
        return said.function, f"{said.how}: {said.why}"
    if weight.eight is not None:
        what = "values and activations" if isinstance(weight.eight, QUANTIZED) else "values"
        where = f"kernels for {native.isa()}" if native.load() else "made dense"
        return f"nn.{dense_class(weight.eight).__name__}", f"{what} in int8; {where}"
    if value.dim() not in (2, 4):
        return "by the operator", f"a weight of {value.dim()} dimensions is computed as its operator asks"
    x = torch.empty(1, value.shape[1], *((8, 8) if value.dim() == 4 else ()), dtype=value.dtype, device="meta")
    said = (
        explain(torch.addmm, x, x, value)
        if weight.turned
        else explain(F.linear if x.dim() == 2 else F.conv2d, x, value)
    )
    where = said.function.removeprefix("gossamer.")
    if isinstance(value.format, PackedRows) and said.how == "native":
        have = native.isa()
        return where, f"{said.why}; {f'kernels for {have}' if have else 'no native kernels: ' + native.why_not()}"
    return where, f"{said.how}: {said.why}"
