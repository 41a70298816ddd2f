"""pack_: every sparse layer into the format that is fastest on this machine, and dense where dense is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.formats import Dense, Format, Masked
from gossamer.kernels.rows.operators import STORED
from gossamer.models.dynamic_int8 import DynamicInt8Linear
from gossamer.models.fuse import fuse_
from gossamer.models.modules import dense_class
from gossamer.models.names import inputs_first
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack import truth
from gossamer.models.pack.int8 import fastest_layout, int8_layers
from gossamer.models.pack.tune import Timing, fastest, fitting, guess, measure
from gossamer.models.surgery import made_sparse
from gossamer.models.weights import Weight, all_weights
from gossamer.progress import watched

if TYPE_CHECKING:
    from rich.table import Table

#: A plain weight with at least this share of zeros was pruned by someone: it is packed too.
_PRUNED = 0.3
#: Tokens that a layer is judged by when there is no example: a reply, a few, a batch.
_TOKENS = (1, 16, 128)


@dataclass(frozen=True)
class PackedLayer:
    """What became of one layer."""

    name: str
    shape: tuple[int, ...]
    sparsity: float
    tokens: tuple[int, ...]  # of a convolution: places of the output
    format: str
    dense_us: float
    us: float
    bytes: int
    dense_bytes: int
    clear: bool = True
    """False: the times are not to be trusted, because other programs disturbed them; they are not kept."""

    @property
    def gain(self) -> float:
        """How many times faster than dense."""
        return self.dense_us / self.us


@dataclass(frozen=True)
class PackReport:
    """What :func:`gossamer.pack_` did; print it, or read ``layers``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> report = gs.pack_(gs.sparsify_(torch.nn.Linear(64, 64), "90%"), tune=False)  # doctest: +ELLIPSIS
    layer...
    >>> [(row.name, row.shape) for row in report.layers]
    [('weight', (64, 64))]
    """

    layers: tuple[PackedLayer, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    measured: bool = True

    @property
    def gain(self) -> float:
        """Dense time over packed time, of all layers together."""
        return sum(r.dense_us for r in self.layers) / max(sum(r.us for r in self.layers), 1e-9)

    def table(self) -> Table:
        """Return the report as a rich table."""
        from rich.table import Table  # rich takes as long to import as all of gossamer

        table = Table("layer", "shape", "tokens", "format", box=None, padding=(0, 2, 0, 0))
        for column in ("sparsity", "dense us", "packed us", "gain", "bytes"):
            table.add_column(column, justify="right")
        for r in self.layers:
            shape, tokens = " x ".join(map(str, r.shape)), " ".join(map(str, r.tokens))
            gain = f"{r.gain:.2f}x" if r.clear else f"{r.gain:.2f}x ?"
            figures = (f"{r.sparsity:.1%}", f"{r.dense_us:,.0f}", f"{r.us:,.0f}", gain)
            table.add_row(r.name, shape, tokens, r.format, *figures, f"{r.bytes / max(r.dense_bytes, 1):.2f}x")
        for name, why in self.skipped:
            table.add_row(name, "", "", f"[dim]left as it is: {why}[/]")
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


def pack_(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    tune: bool = True,
    remeasure: bool = False,
    show_progress: bool | None = None,
) -> PackReport:
    """Put every sparse layer into the format that is fastest on this machine, in place; prints a table.

    Dense and every packed format that fits the pattern are measured layer by layer, interleaved, on the number of
    tokens that the example brings to the layer; the fastest stays, dense where dense wins. What was measured is kept
    for this machine in ``$GOSSAMER_CACHE``. With one thread CPU time counts, which other programs don't disturb. A gain
    above what the operations and bytes saved allow, or one that a second measurement doesn't confirm where several
    threads run on a busy machine, is measured again; if that doesn't help, it is marked "?" and not kept.
    The results are those of the layer before, up to the order of sums.
    Linear layers and transformers' Conv1D are packed, and, with an example and on a CPU, convolutions in two
    dimensions without groups. A layer on a GPU is measured there, by replays of a CUDA graph: what its kernels take,
    without the cost of calling them; in an ``nn.Sequential`` it then applies the ReLU, GELU or SiLU that follows it
    (:func:`gossamer.models.fuse_`). A layer that ``gs.quantize_(model, "int8")`` made keeps its numbers: the layouts of
    its bytes are measured, and "dense us" is what it would take in float32.

    Parameters
    ----------
    model
        With weights made sparse by :func:`gossamer.sparsify_`, by training, or by zeros of another tool.
    example_inputs
        What the model is called with: a tensor, a tuple of positional or a dict of keyword arguments. Without it,
        layers are judged by 1, 16 and 128 tokens, which count alike: times are geometric means.
    tune
        False takes the format from a model of the costs instead of a measurement.
    remeasure
        Measure again what this machine has measured before.
    show_progress
        None: if standard error is a terminal. Stopped by Ctrl-C, each layer is packed or as it was, and all is usable.

    Returns
    -------
    PackReport
        One row a layer.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()), "95%")
    >>> report = gs.pack_(model, torch.randn(64, 256))  # doctest: +ELLIPSIS
    layer...
    """
    from rich.console import Console

    weights, skipped = _weights(model)
    eight = int8_layers(model)
    places: dict[str, list[nn.Module]] = {name: [m for m, _ in weight.places] for name, weight in weights.items()}
    shapes = _shapes(model, example_inputs, places | {name: [layer] for name, layer in eight.items()})
    layers = []
    with truth.measuring_again(remeasure):
        for name, weight in watched("packing", (weights | eight).items(), show_progress):
            seen = sorted(shapes.get(name, ()))
            if isinstance(weight, DynamicInt8Linear):
                seen = seen or [(count, weight.in_features) for count in _TOKENS]
                layers.append(_pack_int8(name, weight, seen, tune, even=name not in shapes))
                continue
            if not isinstance(weight.module, nn.Conv2d):
                inputs = weight.shape[0 if inputs_first(weight.module) else 1]
                seen = seen or [(count, inputs) for count in _TOKENS]
            if seen:
                layers.append(_pack_one(weight, seen, tune, even=name not in shapes))
            else:
                skipped[name] = "a convolution needs example_inputs that reach it"
    fuse_(model)
    made_sparse(model)
    report = PackReport(tuple(layers), tuple(skipped.items()), tune)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table() if layers or skipped else "no sparse layer to pack")
    return report


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


@contextmanager
def _watching(places: dict[str, list[nn.Module]]) -> Iterator[dict[str, set[tuple[int, ...]]]]:
    shapes: dict[str, set[tuple[int, ...]]] = {}
    hooks = []
    for name, modules in places.items():

        def note(module: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
            x = args[0] if isinstance(module, nn.Conv2d) or args[0].dim() == 1 else args[0].flatten(0, -2)
            shapes.setdefault(name, set()).add(tuple(x.shape))

        hooks += [module.register_forward_pre_hook(note) for module in modules]
    try:
        yield shapes
    finally:
        for hook in hooks:
            hook.remove()


def _shapes(model: nn.Module, inputs: Any, places: dict[str, list[nn.Module]]) -> dict[str, set[tuple[int, ...]]]:
    """Return the shapes that each layer sees in one call of the model."""
    if inputs is None:
        return {}
    training = {m: m.training for m in model.modules()}
    model.eval()  # dropout would draw random numbers, batch norm would learn from the example
    try:
        with _watching(places) as shapes, torch.no_grad():
            if isinstance(inputs, dict):
                model(**inputs)
            else:
                model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    finally:
        for module, mode in training.items():
            module.training = mode
    return shapes


def _call(module: Any) -> Callable[[Tensor, Tensor], Tensor]:
    bias = None if module.bias is None else module.bias.detach()
    if inputs_first(module):
        return lambda x, weight: torch.addmm(bias, x, weight)  # type: ignore[arg-type]
    if isinstance(module, nn.Linear):
        return lambda x, weight: F.linear(x, weight, bias)
    options = (module.stride, module.padding, module.dilation, module.groups)
    return lambda x, weight: F.conv2d(x, weight, bias, *options)


def _pack_one(weight: Weight, shapes: list[tuple[int, ...]], tune: bool, even: bool) -> PackedLayer:
    dense = weight.dense()
    mask = weight.mask() if weight.is_sparse else dense != 0
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    call = _call(weight.module)
    tokens = tuple(_tokens(weight.module, s) for s in shapes)
    candidates = _candidates(weight.module, mask, dense)
    times: dict[Format, Timing]
    if tune:
        times = measure(dense, mask, call, candidates, shapes, even)
    else:
        times = guess(dense, mask, candidates, tokens, even)
    best = fastest(times, even)
    before, seconds, shape = times[Dense()].seconds(even), times[best].seconds(even), tuple(dense.shape)
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
        times[best].clear,
    )


def _pack_int8(
    name: str, layer: DynamicInt8Linear, shapes: list[tuple[int, ...]], tune: bool, even: bool
) -> PackedLayer:
    shape, mask = (layer.out_features, layer.in_features), layer.mask()
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    best, before, timing = fastest_layout(layer, shapes, tune, even)
    layer.repack(best)
    tokens = tuple(torch.Size(s[:-1]).numel() for s in shapes)
    times = before * 1e6, timing.seconds(even) * 1e6
    sizes = layer.packed.numel(), 4 * mask.numel()
    return PackedLayer(name, shape, sparsity, tokens, str(best), *times, *sizes, timing.clear)


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
