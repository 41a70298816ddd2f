"""Layers that read the same input, such as q, k and v, computed in one launch.

Gate and up of a gated MLP are multiplied in the same kernel (:mod:`gossamer.models.gated`). Other packed 2:4 layers
only share the launch (:mod:`gossamer.models.together`). Quantized ones are a :class:`Group`, which
stores the weights of its layers together. The first layer that is called computes for all of them, and
the others return their part when they are called with the same tensor. For everything else they are separate layers:
``state_dict``, ``gs.save`` and ``save_pretrained`` get the arrays of each, which are copied on access.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats.levels.pairs import TILE, step_of
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.linear import quantized_linear
from gossamer.kernels.quantized.weight import Arrays
from gossamer.models.gated import gate_
from gossamer.models.pack.examples import Example, evaluating, examples_of
from gossamer.models.quantized import QuantizedLinear, in_type
from gossamer.models.together import MOST, Together, can_join, leave


class Group:
    """The weights of several layers as one, and what was computed for those that are yet to be called."""

    def __init__(self, layers: Sequence[QuantizedLinear]) -> None:
        self.layout, self.cols = layers[0].layout, layers[0].in_features
        self.rows = [layer.out_features for layer in layers]
        self.ready: tuple[Tensor, list[Tensor]] | None = None  # an input, and the outputs of all layers for it
        self.hold(joined([layer.arrays for layer in layers], self.layout, self.rows, self.cols))

    def hold(self, arrays: Arrays) -> None:
        """Keep these arrays as the weight."""
        self.arrays = arrays
        for array in arrays:
            if array is not None:  # no buffer of a module, and still not copied for each replay of a CUDA graph
                torch._dynamo.mark_static_address(array, guard=False)

    def output(self, number: int, x: Tensor) -> Tensor:
        """Return what layer ``number`` gives for x."""
        ready = self.ready
        if ready is None or ready[0] is not x:
            out = quantized_linear(x, self.arrays, self.layout, (sum(self.rows), self.cols), None)
            ready = self.ready = (x, list(out.split(self.rows, -1)))
        if number == len(self.rows) - 1:
            self.ready = None  # all layers have read it: keep neither x nor the outputs alive
        return ready[1][number]

    def part(self, number: int) -> Arrays:
        """Return a copy of the weight of one layer."""
        return divided(self.arrays, self.layout, self.rows, self.cols)[number]

    def move(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply what a module applies to its buffers, except to their types."""
        moved = [None if array is None else in_type(fn, array) for array in self.arrays]
        if any(new is not old for new, old in zip(moved, self.arrays, strict=True)):
            self.hold(Arrays(*moved))  # type: ignore[arg-type]


def joined(weights: Sequence[Arrays], layout: Layout, rows: Sequence[int], cols: int) -> Arrays:
    """Return weights one below the other as one weight: all of one layout, with the same shared columns.

    Values and metadata of a sparse one come in steps of columns, each with all tiles of 64 rows: step by step they are
    joined.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.quantized.weight import quantized
    >>> one, two = (quantized(torch.full((1, 2), each), Layout("int8")) for each in (127.0, 254.0))
    >>> joined([one, two], Layout("int8"), [1, 1], 2).scale
    tensor([1., 2.])
    """
    scale = torch.cat([weight.scale for weight in weights], -1)
    values = [_bytes(weight.values) for weight in weights]
    if layout.dense:
        return Arrays(torch.cat(values).view(layout.dtype), scale)
    tiles, steps = [-(-count // TILE) for count in rows], _steps(layout, cols)

    def cat(arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat([a.view(steps, n, -1) for a, n in zip(arrays, tiles, strict=True)], 1).view(-1)

    meta = cat([weight.meta for weight in weights])  # type: ignore[misc]
    return Arrays(cat(values).view(layout.dtype), scale, weights[0].shared, meta)


def divided(arrays: Arrays, layout: Layout, rows: Sequence[int], cols: int) -> list[Arrays]:
    """Return the weights that were joined, as copies."""
    scales = arrays.scale.split(list(rows), -1)
    if layout.dense:
        values = _bytes(arrays.values).split(list(rows))
        return [Arrays(v.clone().view(layout.dtype), s.clone()) for v, s in zip(values, scales, strict=True)]
    tiles, steps = [-(-count // TILE) for count in rows], _steps(layout, cols)

    def split(array: Tensor) -> list[Tensor]:
        return [part.reshape(-1).clone() for part in array.view(steps, sum(tiles), -1).split(tiles, 1)]

    assert arrays.shared is not None and arrays.meta is not None
    each = zip(split(_bytes(arrays.values)), scales, split(arrays.meta), strict=True)
    return [Arrays(v.view(layout.dtype), s.clone(), arrays.shared.clone(), m) for v, s, m in each]


def _bytes(values: Tensor) -> Tensor:
    """Values as integers: torch joins those."""
    return values if values.dtype is torch.int32 else values.view(torch.int8)


def _steps(layout: Layout, cols: int) -> int:
    return -(-cols // (step_of(layout.format.bits) * layout.m))


# -- finding them


def group_(model: nn.Module, example_inputs: Any) -> list[tuple[str, ...]]:
    """Combine layers that read the same input into one launch, in place. :func:`gossamer.pack_` calls this.

    Layers are combined if each example calls them one after the other with the same tensor, and if they have no bias
    and the same layout. Quantized layers: 2:4, dense, or V:N:M with the same columns; not bitmaps. Their weights are
    stored together until they are separated again (by loading a ``state_dict``, or packing again). Layers in half
    precision: two or three packed 2:4 ones with multiples of 128 outputs; they keep their weights, and share the launch
    on GPUs of compute capability 9.0. The outputs are slices of one tensor.

    In a gated MLP, ``down(activation(gate(x)) * up(x))``, gate and up of one pattern with a multiple of 64 outputs (for
    V:N:M with the same columns) keep their weights, and the activation and the product are computed in the kernel too.

    Parameters
    ----------
    model
        A model with layers of :func:`gossamer.quantize_` or :func:`gossamer.pack_`.
    example_inputs
        As for :func:`gossamer.pack_`.

    Returns
    -------
    list of tuple of str
        The names of the layers of each group.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> class Gated(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.gate, self.up = (torch.nn.Linear(64, 128, bias=False) for _ in range(2))
    ...     def forward(self, x):
    ...         return self.gate(x).relu() * self.up(x)
    >>> group_(gs.quantize_(Gated(), "fp8"), torch.randn(3, 64))
    [('gate', 'up')]
    """
    return group_layers(model, examples_of(example_inputs))


def group_layers(model: nn.Module, examples: Sequence[Example]) -> list[tuple[str, ...]]:
    """As :func:`group_`, for examples that were read."""
    names = {module: name for name, module in model.named_modules()}
    layers = [module for module in names if _may_join(module)]
    for layer in layers:
        layer.ungroup() if isinstance(layer, QuantizedLinear) else leave(layer)
    gated = gate_(model)
    alone = [layer for layer in layers if all(layer not in pair for pair in gated)]
    with evaluating(model):
        found = [_runs(model, alone, example) for example in examples] if alone else []
    agreed = set.intersection(*found) if found else set()
    for run in agreed:
        _join(run)
    return sorted(tuple(names[layer] for layer in run) for run in [*agreed, *gated])


def _may_join(module: nn.Module) -> bool:
    return isinstance(module, QuantizedLinear) or can_join(module)


def _join(layers: Sequence[Any]) -> None:
    if not isinstance(layers[0], QuantizedLinear):
        Together(layers)
        return
    group = Group(layers)
    for number, layer in enumerate(layers):
        layer.join(group, number)


def _runs(model: nn.Module, layers: list[nn.Module], example: Example) -> set[tuple[nn.Module, ...]]:
    """Layers that one call of the model calls one after the other with the same tensor, in every such place alike."""
    calls: list[list[nn.Module]] = []
    last: list[tuple[Tensor, int]] = []  # the tensor of the call before, alive, and its version

    def note(layer: nn.Module, args: tuple[Any, ...]) -> None:
        x, same = args[0], bool(last) and last[0][0] is args[0] and last[0][1] == args[0]._version
        last[:] = [(x, x._version)]
        if same and _fit(calls[-1], layer):
            calls[-1].append(layer)
        else:
            calls.append([layer])

    with _hooked(layers, note):
        example.fresh().run(model)
    runs = {tuple(run) for run in calls}
    often = Counter(layer for run in runs for layer in run)
    return {run for run in runs if len(run) > 1 and all(often[layer] == 1 for layer in run)}


@contextmanager
def _hooked(layers: list[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _fit(run: Sequence[Any], other: Any) -> bool:
    """Can a layer join others in one launch?"""
    first = run[0]
    if isinstance(first, QuantizedLinear) and isinstance(other, QuantizedLinear):
        return _fit_quantized(first, other)
    if isinstance(first, QuantizedLinear) or isinstance(other, QuantizedLinear):
        return False
    kinds = {(layer.weight_values.dtype, layer.weight_values.device) for layer in (first, other)}
    return len(run) < MOST and len(kinds) == 1


def _fit_quantized(first: QuantizedLinear, other: QuantizedLinear) -> bool:
    """Can two layers be one weight?"""
    if first.layout != other.layout or first.device != other.device or first.dtype is not other.dtype:
        return False
    if first.bias is not None or other.bias is not None or first.layout.numbers == "int4":
        return False
    if first.layout.dense or first.layout.bitmap:
        return first.layout.dense
    whole = first.out_features % TILE == 0 and other.out_features % TILE == 0
    return whole and (first.layout.m == 4 or torch.equal(first.arrays.shared, other.arrays.shared))  # type: ignore[arg-type]
