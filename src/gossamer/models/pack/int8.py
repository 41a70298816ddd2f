"""pack_ for layers in eight bits: the layouts of a weight, measured; its values don't change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Dense
from gossamer.kernels.int8.layout import Layout, as_rounded, layouts, pack_as, usual
from gossamer.kernels.int8.weight import Rounded, parts
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.pack import truth, tune
from gossamer.models.pack.layers import call_of
from gossamer.models.pack.passes import far_away, in_the_key
from gossamer.models.pack.tune import Counts, Timing
from gossamer.models.pack.turns import in_turns

_CYCLES = {"dense": 1.0, "bitmap": 1.0, "lookup": 1.4, "lines": 1.1}  # of 64 products of a token, on Zen 4
_CLOCK = 3.5e9
_BYTES = 30e9  # read each second
_CALL = 5e-6


def int8_layers(model: nn.Module) -> dict[str, Int8Layer]:
    """Return the layers whose layout is chosen, by name."""
    found = model.named_modules()
    return {name: m for name, m in found if isinstance(m, Int8Layer) and m.kernels and m.packed.is_cpu}


def fastest_layout(
    layer: Int8Layer, shapes: Sequence[tuple[int, ...]], tuned: bool, counts: Counts, between: int = 0
) -> tuple[Layout, float, Timing]:
    """Return the fastest layout, the seconds of the layer in float32, dense, and its times in this layout.

    Parameters
    ----------
    layer
        Any.
    shapes
        Of the inputs that it sees.
    tuned
        Measure; False takes a model of the costs.
    counts
        How the times of several shapes count: :meth:`gossamer.models.pack.tune.Timing.seconds`.
    between
        Bytes of weights that the model reads between two calls of the layer.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = gs.quantize_(gs.sparsify_(torch.nn.Linear(64, 64), "90%"), "int8")
    >>> layout, dense, timing = fastest_layout(layer, [(4, 64)], tuned=False, counts=(1,))
    >>> str(layout)
    'int8 lookup'
    """
    weight, mask = as_rounded(layer.packed)
    times = _measured(layer, weight, mask, shapes, between) if tuned else _guessed(layer, weight, mask, shapes)
    best = min((layout for layout in times if layout is not None), key=lambda layout: times[layout].seconds(counts))
    return best, times[None].seconds(counts), times[best]


def _measured(
    layer: Int8Layer, weight: Rounded, mask: Tensor, shapes: Sequence[tuple[int, ...]], between: int
) -> dict[Layout | None, Timing]:
    """Seconds of each layout, and of dense float32 under None; what this machine has measured before is known."""
    suited = layouts(mask)
    key = tune.key_of(weight.values, mask, suited, shapes, (layer.sizes_text(), in_the_key(between)))
    names: dict[str, Layout | None] = {str(Dense()): None, **{str(layout): layout for layout in suited}}
    known = tune.known_times(key)
    if known is not None:
        return {names[name]: Timing(tuple(seconds)) for name, seconds in known.items()}
    dense: Any = layer.as_dense().float()
    multiplied_dense = call_of(dense)
    forms: dict[Layout | None, Tensor] = {None: dense.weight.detach()}
    forms |= {layout: pack_as(weight, mask, layout) for layout in suited}
    times: dict[Layout | None, tuple[float, ...]] = dict.fromkeys(forms, ())
    bound, clear = truth.most(float(mask.float().mean()) if mask.numel() else 0.0, ratio=4), True
    with torch.no_grad():
        for shape in shapes:
            x = _input(shape)

            def multiplied(layout: Layout | None, data: Tensor, x: Tensor = x) -> Tensor:
                return multiplied_dense(x, data) if layout is None else layer.compute(data, x)

            calls = far_away(forms, between, multiplied)
            taken, believed = truth.steady(partial(in_turns, calls, tune.SECONDS, None), None, bound)
            clear &= believed
            times = {layout: (*times[layout], seconds) for layout, seconds in taken.items()}
    if clear:
        tune.store_known(key, {name: times[layout] for name, layout in names.items()})
    return {layout: Timing(seconds, clear=clear) for layout, seconds in times.items()}


def _input(shape: tuple[int, ...]) -> Tensor:
    """Random activations; images in the format that is fastest for all layouts, dense too."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _guessed(
    layer: Int8Layer, weight: Rounded, mask: Tensor, shapes: Sequence[tuple[int, ...]]
) -> dict[Layout | None, Timing]:
    rows, cols = mask.shape
    layout, tokens = usual(mask), [layer.tokens(shape) for shape in shapes]
    packed = pack_as(weight, mask, layout)
    products = parts(packed).values.numel() / 64
    cycles = _CYCLES[layout.kind] * products / _CLOCK
    return {
        None: Timing(tuple(tune.dense_seconds(rows, cols, count) for count in tokens)),
        layout: Timing(tuple(_CALL + max(packed.numel() / _BYTES, cycles * count) for count in tokens)),
    }
