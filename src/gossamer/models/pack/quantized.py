"""pack_ for quantized layers on a GPU: the layouts of a weight, measured; its values don't change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.formats import Dense
from gossamer.kernels import gpu
from gossamer.kernels.bitmap.plan import TOKENS
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.linear import quantized_linear
from gossamer.kernels.quantized.weight import Arrays, dense_values, packed_as
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack import tune
from gossamer.models.pack.graphs import replayed
from gossamer.models.pack.tune import Counts, Timing
from gossamer.models.quantize import shared_columns
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.quantized_experts import quantized_weights

_BYTES = 4e12  # read each second by an H200
_RATE = 1.2e15  # multiplications and additions of dense e4m3
_CALL = 6e-6


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLinear]:
    """Return the quantized layers of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def experts_left(model: nn.Module) -> dict[str, str]:
    """Return why the weights of quantized experts are left as they are, by name."""
    found = {}
    for name, weight in quantized_weights(model).items():
        reason, layout = weight.experts.stacks[weight.name].refusal(weight.experts.device), str(weight.layout)
        if weight.experts.device.type == "cpu":
            found[name] = f"{layout} is for a GPU; on a CPU a dense copy of each expert is multiplied"
        else:
            found[name] = f"{layout}: {reason or 'experts have no other layout in 8 bits'}"
    return found


def layouts(layer: QuantizedLinear, capability: tuple[int, int]) -> list[Layout]:
    """Return the layouts that hold the numbers of a layer, for which a GPU has kernels.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = gs.quantize_(gs.sparsify_(torch.nn.Linear(64, 64), gs.VNM("all", 2, 8)), "fp8")
    >>> [str(layout) for layout in layouts(layer, (9, 0))], [str(layout) for layout in layouts(layer, (8, 9))]
    (['fp8 all:2:8', 'fp8 dense'], ['fp8 weights all:2:8', 'fp8 dense'])
    >>> layer = gs.quantize_(gs.sparsify_(torch.nn.Linear(64, 64), "70%"), "fp8")
    >>> [str(layout) for layout in layouts(layer, (9, 0))], [str(layout) for layout in layouts(layer, (8, 9))]
    (['fp8 bitmap', 'fp8 dense'], ['fp8 dense'])
    """
    numbers = layer.layout.numbers
    if numbers == "int4":
        return [layer.layout]
    mask = None if layer.layout.m else layer.mask()
    found = (layer.layout.v, layer.layout.m) if mask is None else shared_columns(mask)
    sparse = []
    if found is not None and found[0] == "all":
        sparse.append(Layout(numbers, *found))
    if found is not None and numbers == "fp8" and (found[0] == "all" or found[0] % 16 == 0):
        sparse.append(Layout(numbers, *found, weights_only=True))  # for GPUs, and V, that the other isn't for
    if found is None and mask is not None and numbers == "fp8" and 0 < _density(mask) <= pack_gpu.DENSEST_BITMAP:
        sparse.append(Layout(numbers, bitmap=True))
    return [*(layout for layout in sparse if layout.refusal(capability) is None)][:1] + [Layout(numbers)]


def _density(mask: Tensor) -> float:
    return float(mask.float().mean()) if mask.numel() else 0.0


def fastest_quantized(
    layer: QuantizedLinear, shapes: Sequence[tuple[int, ...]], tuned: bool, counts: Counts
) -> tuple[Layout, float, Timing]:
    """Return the fastest layout, the seconds of the layer in half precision, dense, and its times in this layout.

    Parameters
    ----------
    layer
        On a GPU.
    shapes
        Of the inputs that it sees.
    tuned
        Measure; False takes a model of the costs.
    counts
        How the times of several shapes count: :meth:`gossamer.models.pack.tune.Timing.seconds`.
    """
    suited = layouts(layer, gpu.capability(layer.device.index or 0))
    times = _measured(layer, suited, shapes) if tuned else guessed(layer, suited, shapes)
    best = min((layout for layout in times if layout is not None), key=lambda layout: times[layout].seconds(counts))
    return best, times[None].seconds(counts), times[best]


def _measured(
    layer: QuantizedLinear, suited: Sequence[Layout], shapes: Sequence[tuple[int, ...]]
) -> dict[Layout | None, Timing]:
    """Seconds of each layout, and of dense half precision under None; what was measured before is known."""
    half = layer.dtype if layer.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    dense, mask = layer.weight.to(half), layer.mask()
    key = tune.key_of(dense, mask, suited, shapes)
    names: dict[str, Layout | None] = {str(Dense()): None, **{str(layout): layout for layout in suited}}
    known = tune.known_times(key)
    if known is not None:
        return {names[name]: Timing(tuple(seconds)) for name, seconds in known.items()}
    weights = {layout: _arranged(layer, layout) for layout in suited}
    bias = None if layer.bias is None else layer.bias.detach().to(half)
    times: dict[Layout | None, tuple[float, ...]] = dict.fromkeys(names.values(), ())
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dense)
            calls: dict[Layout | None, list[Callable[[], Any]]] = {None: _round(x, dense, partial(F.linear, bias=bias))}
            for layout, arrays in weights.items():
                call = partial(quantized_linear, layout=layout, shape=layer.shape, bias=bias)
                calls[layout] = _round(x, arrays, call)
            times = {layout: (*times[layout], seconds) for layout, seconds in replayed(calls, device=x.device).items()}
    tune.store_known(key, {name: times[layout] for name, layout in names.items()})
    return {layout: Timing(seconds) for layout, seconds in times.items()}


def _arranged(layer: QuantizedLinear, layout: Layout) -> Arrays:
    if layout == layer.layout:
        return layer.arrays
    return packed_as(dense_values(layer.arrays, layer.layout, layer.shape), layer.arrays.scale, layout)


def _round(x: Tensor, weight: Tensor | Arrays, call: Callable[..., Tensor]) -> list[Callable[[], Any]]:
    """Calls with a weight and copies of it: see :func:`gossamer.models.pack.gpu.interleaved`."""
    if isinstance(weight, Tensor):
        return [partial(call, x, weight.clone()) for _ in range(pack_gpu.copies_of(weight.nbytes, x))]
    nbytes = sum(array.nbytes for array in weight if array is not None)
    copies = range(pack_gpu.copies_of(nbytes, x))
    return [partial(call, x, Arrays(*(None if a is None else a.clone() for a in weight))) for _ in copies]  # type: ignore[arg-type]


def guessed(
    layer: QuantizedLinear, suited: Sequence[Layout], shapes: Sequence[tuple[int, ...]]
) -> dict[Layout | None, Timing]:
    """Estimate instead: bytes over bandwidth or products over rate, whichever is more."""
    rows, cols = layer.shape
    size, tokens = rows * cols, [torch.Size(shape[:-1]).numel() for shape in shapes]

    def seconds(layout: Layout, count: int) -> float:
        share = 2 / layout.m * 1.25 if layout.m else 1.0
        if layout.bitmap:
            if count > TOKENS:  # made dense first
                return seconds(Layout("fp8"), count) + 2 * size / _BYTES
            kept = layer.values.numel() / size if layer.layout.bitmap else 0.75  # bytes of each position
            return _CALL + max((kept + 0.19) * size / _BYTES, 4 * size * count / _RATE * 2)
        bits = 4.5 if layout.numbers == "int4" else 8
        rate = _RATE / (2 if layout.weights_only else 1)
        return _CALL + max(size * share * bits / 8 / _BYTES, 2 * size * count * max(share, 0.3) / rate)

    dense = Timing(tuple(pack_gpu.guess(Dense(), rows, cols, size, count, 2) for count in tokens))
    return {None: dense, **{layout: Timing(tuple(seconds(layout, count) for count in tokens)) for layout in suited}}
