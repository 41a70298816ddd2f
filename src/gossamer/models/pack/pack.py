"""pack_: every sparse layer into the format that is fastest on this machine, and dense where dense is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.formats import Dense, Format, Masked
from gossamer.kernels.rows.operators import STORED
from gossamer.models.dynamic_int8 import DynamicInt8Linear
from gossamer.models.fuse import fuse_
from gossamer.models.group import group_layers
from gossamer.models.modules import dense_class
from gossamer.models.names import inputs_first
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack.examples import examples_of, model_seconds, shapes_of
from gossamer.models.pack.int8 import fastest_layout, int8_layers
from gossamer.models.pack.quantized import fastest_quantized, quantized_layers
from gossamer.models.pack.report import MeasuredExample, PackedLayer, PackReport
from gossamer.models.pack.tune import Counts, Timing, fastest, fitting, guess, measure
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight, all_weights
from gossamer.progress import watched

#: A plain weight with at least this share of zeros was pruned by someone: it is packed too.
_PRUNED = 0.3
#: Tokens that a layer is judged by when there is no example: a reply, a few, a batch.
_TOKENS = (1, 16, 128)
Small = DynamicInt8Linear | QuantizedLinear


def pack_(
    model: nn.Module, example_inputs: Any = None, *, tune: bool = True, show_progress: bool | None = None
) -> PackReport:
    """Put every sparse layer into the format that is fastest on this machine, in place; prints a table.

    Dense and every packed format that fits the pattern are measured layer by layer, interleaved, on the numbers of
    tokens that the examples bring to the layer; the fastest stays, dense where dense wins. What was measured is kept
    for this machine in ``$GOSSAMER_CACHE``. Then the last lines show one eager call of the model with each example, as
    it was given and as it is now. The results are those of the layer before, up to the order of sums.
    Linear layers and transformers' Conv1D are packed, and, with an example and on a CPU, convolutions in two
    dimensions without groups. A layer on a GPU is measured there, by replays of a CUDA graph: what its kernels take,
    without the cost of calling them; in an ``nn.Sequential`` it then applies the ReLU, GELU or SiLU that follows it
    (:func:`gossamer.models.fuse_`). A layer that :func:`gossamer.quantize_` made keeps its numbers: the layouts of its
    bytes are measured, dense among them; those that read the same input compute by one launch then
    (:func:`gossamer.models.group_`), and "dense us" is what it would take in float32 (on a GPU, half precision).

    Parameters
    ----------
    model
        With weights made sparse by :func:`gossamer.sparsify_`, by training, or by zeros of another tool.
    example_inputs
        What the model is called with: a tensor, a tuple of positional or a mapping of keyword arguments. A **list** is
        several such examples: the format that is best over all of them is taken, by the sum of their times. A pair
        ``(example, weight)`` in the list counts as that many calls: ``[prompt, (one_token, 200)]``. (So a tuple of an
        input and a number, in a list, is a pair; write ``((x, 3), 1)`` if 3 is an argument of the model.) Without
        examples, layers are judged by 1, 16 and 128 tokens, which count alike: times are geometric means.
    tune
        False takes the format from a model of the costs and measures nothing.
    show_progress
        None: if standard error is a terminal. Stopped by Ctrl-C, each layer is packed or as it was, and all is usable.

    Returns
    -------
    PackReport
        One row a layer, and one for each example.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()), "95%")
    >>> report = gs.pack_(model, [torch.randn(64, 256), (torch.randn(1, 256), 100)])  # doctest: +ELLIPSIS
    layer...
    >>> report.layers[0].tokens, [example.text for example in report.examples]
    ((1, 64), ['64 x 256', '1 x 256'])
    """
    from rich.console import Console

    weights, skipped = _weights(model)
    small: dict[str, Small] = {**int8_layers(model), **quantized_layers(model)}
    for name in [
        name for name, layer in small.items() if isinstance(layer, QuantizedLinear) and layer.device.type == "cpu"
    ]:
        skipped[name] = f"{small.pop(name).layout} is for a GPU; on a CPU a dense copy is multiplied"
    places: dict[str, list[nn.Module]] = {name: [m for m, _ in weight.places] for name, weight in weights.items()}
    examples = examples_of(example_inputs)
    seen = shapes_of(model, examples, places | {name: [layer] for name, layer in small.items()})
    before = [model_seconds(model, example) for example in examples if tune]
    layers = []
    for name, weight in watched("packing", {**weights, **small}.items(), show_progress):
        shapes = sorted(seen.get(name, ())) or _usual_shapes(weight)
        counts = tuple(seen[name][shape] for shape in shapes) if name in seen else None
        if not isinstance(weight, Weight):
            layers.append(_pack_small(name, weight, shapes, tune, counts))
        elif shapes:
            layers.append(_pack_one(weight, shapes, tune, counts))
        else:
            skipped[name] = "a convolution needs example_inputs that reach it"
    fuse_(model)
    group_layers(model, examples if small else ())
    made_sparse(model)
    measured = tuple(
        MeasuredExample(example.text, example.weight, seconds * 1e6, model_seconds(model, example) * 1e6)
        for example, seconds in zip(examples, before, strict=False)
    )
    report = PackReport(tuple(layers), tuple(skipped.items()), tune, measured)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table() if layers or skipped else "no sparse layer to pack")
    return report


def _usual_shapes(weight: Weight | Small) -> list[tuple[int, ...]]:
    """Shapes that a layer is judged by when no example reaches it; none for a convolution."""
    if not isinstance(weight, Weight):
        return [(count, weight.in_features) for count in _TOKENS]
    if isinstance(weight.module, nn.Conv2d):
        return []
    inputs = weight.shape[0 if inputs_first(weight.module) else 1]
    return [(count, inputs) for count in _TOKENS]


def _weights(model: nn.Module) -> tuple[dict[str, Weight], dict[str, str]]:
    """Weights to pack by name, and those that can't be, with the reason."""
    found: dict[str, Weight] = {}
    skipped: dict[str, str] = {}
    for name, weight in all_weights(model).items():
        if not (weight.is_sparse or _pruned(weight)):
            continue
        reason = _refused(weight)
        if reason is None:
            found[name] = weight
        else:
            skipped[name] = reason
    return found, skipped


def _refused(weight: Weight) -> str | None:
    """Why a weight can't be packed; None if it can."""
    kind, parameter = dense_class(weight.module).__name__, weight.parameter
    if not _packable(weight):
        return f"packed kernels are for Linear, Conv1D, and Conv2d without groups; this is {kind}"
    if parameter.dtype not in STORED or parameter.device.type not in ("cpu", "cuda"):
        where = f"{parameter.dtype} on {parameter.device}"
        return f"packed kernels are for float32 and half precision on a CPU or a CUDA GPU, not {where}"
    if parameter.is_cuda and not isinstance(weight.module, nn.Linear):
        return f"packed kernels on a GPU are for Linear; this is {kind}"
    return None


def _packable(weight: Weight) -> bool:
    module, name = weight.places[0]
    if name != "weight":
        return False
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear) or inputs_first(module)


def _pruned(weight: Weight) -> bool:
    if not _packable(weight) or weight.shape.numel() == 0:
        return False
    return float((weight.dense() == 0).float().mean()) >= _PRUNED


def _call(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    bias = None if module.bias is None else module.bias.detach()
    if inputs_first(module):
        return lambda x, weight: torch.addmm(bias, x, weight)  # type: ignore[arg-type]
    if isinstance(module, nn.Linear):
        return lambda x, weight: F.linear(x, weight, bias)
    options = (module.stride, module.padding, module.dilation, module.groups)
    return lambda x, weight: F.conv2d(x, weight, bias, *options)


def _pack_one(weight: Weight, shapes: list[tuple[int, ...]], tune: bool, counts: Counts) -> PackedLayer:
    dense = weight.dense()
    mask = weight.mask() if weight.is_sparse else dense != 0
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    call = _call(weight.module)
    tokens = tuple(_tokens(weight.module, s) for s in shapes)
    candidates = _candidates(weight.module, mask, dense)
    times: dict[Format, Timing]
    if tune:
        times = measure(dense, mask, call, candidates, shapes, counts)
    else:
        times = guess(dense, mask, candidates, tokens, counts)
    best = fastest(times, counts)
    before, seconds, shape = times[Dense()].seconds(counts), times[best].seconds(counts), tuple(dense.shape)
    if isinstance(best, Dense):  # as fast as dense, and still sparse: its mask is kept when it trains on
        weight.become(dense, mask, Masked())
    else:
        weight.become(times[best].tensor)
    return PackedLayer(
        weight.name,
        shape,
        sparsity,
        tokens,
        str(weight.format),
        before * 1e6,
        seconds * 1e6,
        weight.sparse().nbytes,
        dense.numel() * dense.element_size(),
    )


def _pack_small(name: str, layer: Small, shapes: list[tuple[int, ...]], tune: bool, counts: Counts) -> PackedLayer:
    """Pack a layer whose weight has 8 or 4 bits."""
    mask = layer.mask()
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    best: Any
    if isinstance(layer, DynamicInt8Linear):
        best, before, seconds = fastest_layout(layer, shapes, tune, counts)
    else:
        best, before, seconds = fastest_quantized(layer, shapes, tune, counts)
    layer.repack(best)
    shape, tokens = (layer.out_features, layer.in_features), tuple(torch.Size(s[:-1]).numel() for s in shapes)
    times = before * 1e6, seconds * 1e6
    return PackedLayer(name, shape, sparsity, tokens, str(best), *times, layer.nbytes, layer.dense_bytes)


def _candidates(module: nn.Module, mask: Tensor, dense: Tensor) -> list[Format]:
    """Formats with kernels that hold the weight where it is."""
    if dense.is_cuda:
        return pack_gpu.fitting(mask.flatten(1), dense.dtype)
    if inputs_first(module):
        return [turned for format in fitting(mask.t()) if (turned := format.transposed())]
    return fitting(mask.flatten(1))


def _tokens(module: nn.Module, shape: tuple[int, ...]) -> int:
    """How many vectors the layer multiplies by its weight."""
    if not isinstance(module, nn.Conv2d):
        return torch.Size(shape[:-1]).numel()
    plain = nn.Conv2d(1, 1, module.kernel_size, module.stride, module.padding, module.dilation, device="meta")  # type: ignore[arg-type]
    *batch, _, height, width = shape
    return plain(torch.empty(*batch, 1, height, width, device="meta")).numel()
