"""pack_: convert every sparse layer to the fastest format on this machine, or keep it dense if that is faster."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from gossamer.formats import Dense, Format, Masked
from gossamer.formats.values import is_computed_from
from gossamer.models.coverage import Left, reason_to_stay_dense
from gossamer.models.experts import experts_hold_inputs_first, is_experts
from gossamer.models.fuse import fuse_
from gossamer.models.group import group_layers
from gossamer.models.int8_conv import DynamicInt8Conv
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.names import inputs_first
from gossamer.models.pack import truth
from gossamer.models.pack.examples import examples_of, model_seconds, shapes_of
from gossamer.models.pack.experts import stacked, usual_expert
from gossamer.models.pack.foreign import apply_masks
from gossamer.models.pack.int8 import fastest_layout, int8_layers
from gossamer.models.pack.layers import OF_IMAGES, call_of, candidates_of, options_of, refused, tokens_of
from gossamer.models.pack.passes import read_by_a_call
from gossamer.models.pack.quantized import experts_left, fastest_quantized, quantized_layers
from gossamer.models.pack.report import MeasuredExample, PackedLayer, PackReport
from gossamer.models.pack.tune import Counts, Timing, fastest, guess, measure
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.shrink import without_effect
from gossamer.models.summary import summary
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight, all_weights, check_model
from gossamer.progress import watched

#: A plain weight with at least this share of zeros was pruned by someone: it is packed too.
_PRUNED = 0.3
#: Tokens that a layer is judged by when there is no example: a reply, a few, a batch.
_TOKENS = (1, 16, 128)
_TABLES = (nn.Embedding, nn.EmbeddingBag)
Small = Int8Layer | QuantizedLinear


def pack_(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    tune: bool = True,
    remeasure: bool = False,
    quiet: bool = False,
    show_progress: bool | None = None,
) -> PackReport:
    """Convert every sparse layer to the fastest format on this machine, in place; print a table.

    Dense and every packed format that fits the pattern are measured for each layer, interleaved, with the numbers of
    tokens that the examples have there. The fastest is used; where that is dense, the layer keeps its mask. The results
    are those of the layer before, up to floating-point rounding.

    Measurements are kept for this machine in ``$GOSSAMER_CACHE``. With one thread, CPU time is measured, which other
    programs don't disturb. A gain that is larger than the saved operations and bytes allow is measured again; if that
    doesn't help, it is marked "?" and not kept. On a busy machine several threads wait for each other, so one thread is
    measured instead: that is marked "?" and not kept either. The last lines of the table show one eager call of the
    model with each example, before and after.

    Linear layers, transformers' Conv1D, the projections of nn.MultiheadAttention and the experts of transformers'
    mixture-of-experts models are packed (on a GPU only experts with 2:4 or V:N:M); on a CPU also, with an example,
    convolutions that are not depthwise.

    On a CPU the weights of a small model stay in a cache between two calls, and those of a large one come from memory,
    where fewer bytes count for more. So each layer is measured with copies of its weight, one after another: together
    as many bytes as the model reads between two calls of the layer.

    A layer on a GPU is measured there, by CUDA graphs, so without the overhead of calls. In an ``nn.Sequential`` it is
    then fused with a following ReLU, GELU or SiLU (:func:`gossamer.models.fuse_`).

    For a layer of :func:`gossamer.quantize_`, the layouts of its bytes are measured, including dense; its values don't
    change. Layers that read the same input are combined into one launch (:func:`gossamer.models.group_`). "dense us" is
    the time in float32 (on a GPU, in half precision).

    Parameters
    ----------
    model
        A model with sparse weights, by :func:`gossamer.sparsify_`, by training, or with the zeros of another tool.
        Masks of ``torch.nn.utils.prune`` are applied first, as by its ``remove``.
    example_inputs
        The arguments of a call: a tensor, a tuple of positional or a mapping of keyword arguments. A **list** means
        several such examples: the format with the smallest sum of times is used. A pair ``(example, weight)`` in the
        list counts as this many calls: ``[prompt, (one_token, 200)]``. (So a tuple of an input and a number, in a list,
        is a pair; write ``((x, 3), 1)`` if 3 is an argument of the model.) Without examples, layers are measured with
        1, 16 and 128 tokens, and compared by the geometric mean.
    tune
        If False, choose by a cost model instead of measuring.
    remeasure
        Measure again what this machine has measured before.
    quiet
        Don't print the table.
    show_progress
        None: only if standard error is a terminal. After Ctrl-C each layer is either packed or unchanged, and the model
        works.

    Returns
    -------
    PackReport
        One row per layer, and one for each example.

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

    check_model(model)
    apply_masks(model)
    weights, skipped = _weights(model)
    dense = _dense(model, {*weights, *skipped})  # by the names that weights have before layers are fused
    idle = without_effect(model)
    small: dict[str, Small] = {**int8_layers(model), **quantized_layers(model)}
    for name in [
        name for name, layer in small.items() if isinstance(layer, QuantizedLinear) and layer.device.type == "cpu"
    ]:
        skipped[name] = f"{small.pop(name).layout} is for a GPU; on a CPU a dense copy is multiplied"
    skipped |= experts_left(model)
    callers: dict[nn.Module, nn.Module] = {  # of layers that are never called themselves
        m.out_proj: m for m in model.modules() if isinstance(m, nn.MultiheadAttention)
    }
    places: dict[str, list[nn.Module]] = {
        name: [callers.get(m, m) for m, _ in weight.places] for name, weight in weights.items()
    }
    examples = examples_of(example_inputs)
    seen = shapes_of(model, examples, places | {name: [layer] for name, layer in small.items()})
    busy = truth.disturbed()  # asked once: before and after must be the same measurement
    before = [model_seconds(model, example, busy) for example in examples if tune]
    between = read_by_a_call(model, weights.values())
    layers = []
    with truth.measuring_again(remeasure):
        for name, weight in watched("packing", {**weights, **small}.items(), show_progress):
            shapes = sorted(seen.get(name, ())) or _usual_shapes(weight)
            counts = tuple(seen[name][shape] for shape in shapes) if name in seen else None
            if not shapes:
                skipped[name] = "a convolution needs example_inputs that reach it"
            elif isinstance(weight, Weight):
                layers.append(_pack_one(weight, shapes, tune, counts, between))
            else:
                layers.append(_pack_small(name, weight, shapes, tune, counts, between))
    fuse_(model)
    group_layers(model, examples)
    made_sparse(model)
    measured = tuple(
        MeasuredExample(
            example.text, example.weight, seconds * 1e6, model_seconds(model, example, busy) * 1e6, not busy
        )
        for example, seconds in zip(examples, before, strict=False)
    )
    whole = summary(model)
    size = sum(math.prod(row.shape) for row in whole.rows)
    report = PackReport(tuple(layers), tuple(skipped.items()), tune, measured, size, 1 - whole.density, dense, idle)
    if not quiet:
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(report.table() if layers or skipped else f"no sparse layer to pack: {report.taken}")
    return report


def _dense(model: nn.Module, sparse: Collection[str]) -> tuple[Left, ...]:
    """Weights that are dense, and why."""
    dense = {name: weight for name, weight in all_weights(model).items() if name not in sparse}
    return tuple(Left(n, w.shape.numel(), reason_to_stay_dense(w) or "not sparse") for n, w in dense.items())


def _usual_shapes(weight: Weight | Small) -> list[tuple[int, ...]]:
    """Shapes that a layer is judged by when no example reaches it; none for a convolution."""
    if isinstance(weight, DynamicInt8Conv) or (isinstance(weight, Weight) and isinstance(weight.module, OF_IMAGES)):
        return []
    if not isinstance(weight, Weight):
        return [(count, weight.shape[1]) for count in _TOKENS]
    return [(count, _inputs(weight)) for count in _TOKENS]


def _inputs(weight: Weight) -> int:
    """Length of the vectors that a layer, or an expert, multiplies."""
    if is_experts(weight.module, weight.shape):
        return weight.shape[1 if experts_hold_inputs_first(weight.module) else 2]
    return weight.shape[0 if inputs_first(weight.module) else 1]


def _weights(model: nn.Module) -> tuple[dict[str, Weight], dict[str, str]]:
    """Weights to pack by name, and those that can't be, with the reason."""
    found: dict[str, Weight] = {}
    skipped: dict[str, str] = {}
    for name, weight in all_weights(model).items():
        if weight.foreign or not (weight.is_sparse or _pruned(weight)):
            continue
        reason = refused(weight)
        if reason is None:
            found[name] = weight
        else:
            skipped[name] = reason
    return found, skipped


def _pruned(weight: Weight) -> bool:
    """Has a plain weight many zeros? (Tables of embeddings may, and biases of experts, for other reasons.)"""
    if len(weight.shape) < 2 or weight.shape.numel() == 0 or weight.parameter.is_meta:
        return False
    if weight.name.endswith("bias") or isinstance(weight.module, _TABLES) or is_computed_from(weight.name):
        return False
    return float((weight.dense() == 0).float().mean()) >= _PRUNED


def _pack_one(weight: Weight, shapes: list[tuple[int, ...]], tune: bool, counts: Counts, between: int) -> PackedLayer:
    dense = weight.dense()
    mask = weight.mask() if weight.is_sparse else dense != 0
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    candidates = candidates_of(weight.module, mask, dense)
    experts = is_experts(weight.module, weight.shape)
    if experts:
        shapes = [(count, _inputs(weight)) for count, _ in shapes]
    tokens = tuple(tokens_of(weight.module, s) for s in shapes)
    judged = usual_expert(dense, mask) if experts else (dense, mask)
    times: dict[Format, Timing]
    if tune:
        options = options_of(weight.module)
        times = measure(*judged, call_of(weight.module), candidates, shapes, counts, options, between)
    else:
        times = guess(*judged, candidates, tokens, counts)
    best = fastest(times, counts)
    before, seconds, shape = times[Dense()].seconds(counts), times[best].seconds(counts), tuple(dense.shape)
    if isinstance(best, Dense):  # as fast as dense, and still sparse: its mask is kept when it trains on
        weight.become(dense, mask, Masked())
    elif experts:
        weight.become(dense, mask, stacked(best, dense.shape[1]))
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
        times[best].clear,
    )


def _pack_small(
    name: str, layer: Small, shapes: list[tuple[int, ...]], tune: bool, counts: Counts, between: int
) -> PackedLayer:
    """Pack a layer whose weight has 8 or 4 bits."""
    mask = layer.mask()
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    best: Any
    if isinstance(layer, Int8Layer):
        best, before, timing = fastest_layout(layer, shapes, tune, counts, between)
    else:
        best, before, timing = fastest_quantized(layer, shapes, tune, counts)
    layer.repack(best)
    count = layer.tokens if isinstance(layer, Int8Layer) else (lambda shape: torch.Size(shape[:-1]).numel())
    tokens = tuple(count(shape) for shape in shapes)
    times, sizes = (before * 1e6, timing.seconds(counts) * 1e6), (layer.nbytes, layer.dense_bytes)
    return PackedLayer(name, layer.shape, sparsity, tokens, str(best), *times, *sizes, timing.clear)
