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

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
from gossamer.kernels.rows.operators import STORED
from gossamer.models.fuse import FusedLinear, fuse_
from gossamer.models.names import inputs_first
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack.tune import Timing, fastest, fitting, guess, measure
from gossamer.models.surgery import made_sparse, replace
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
            figures = (f"{r.sparsity:.1%}", f"{r.dense_us:,.0f}", f"{r.us:,.0f}", f"{r.gain:.2f}x")
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
    model: nn.Module, example_inputs: Any = None, *, tune: bool = True, show_progress: bool | None = None
) -> PackReport:
    """Put every sparse layer into the format that is fastest on this machine, in place; prints a table.

    Dense and every packed format that fits the pattern are measured layer by layer, interleaved, on the number of
    tokens that the example brings to the layer; the fastest stays, dense where dense wins. What was measured is kept
    for this machine in ``$GOSSAMER_CACHE``. The results are those of the layer before, up to the order of sums.
    Linear layers and transformers' Conv1D are packed, and, with an example and on a CPU, convolutions in two
    dimensions without groups. A layer on a GPU is measured there, by replays of a CUDA graph: what its kernels take,
    without the cost of calling them; in an ``nn.Sequential`` it then applies the ReLU, GELU or SiLU that follows it
    (:func:`gossamer.models.fuse_`).

    Parameters
    ----------
    model
        With weights made sparse by :func:`gossamer.sparsify_`, by training, or by zeros of another tool.
    example_inputs
        What the model is called with: a tensor, a tuple of positional or a dict of keyword arguments. Without it,
        layers are judged by 1, 16 and 128 tokens, which count alike: times are geometric means.
    tune
        False takes the format from a model of the costs instead of a measurement.
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
    shapes = _shapes(model, example_inputs, weights)
    layers = []
    for name, module in watched("packing", weights.items(), show_progress):
        seen = sorted(shapes.get(name, ()))
        if not isinstance(module, nn.Conv2d):
            inputs = module.weight.shape[0 if inputs_first(module) else 1]
            seen = seen or [(count, inputs) for count in _TOKENS]
        if seen:
            layers.append(_pack_one(name, module, seen, tune, even=name not in shapes))
        else:
            skipped[name] = "a convolution needs example_inputs that reach it"
    fuse_(model)
    made_sparse(model)
    report = PackReport(tuple(layers), tuple(skipped.items()), tune)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table() if layers or skipped else "no sparse layer to pack")
    return report


def _weights(model: nn.Module) -> tuple[dict[str, nn.Linear | nn.Conv2d], dict[str, str]]:
    """Layers to pack by the name of their weight, and those that can't be, with the reason."""
    found: dict[str, nn.Linear | nn.Conv2d] = {}
    skipped: dict[str, str] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter) and not isinstance(weight, SparseTensor):
            continue
        name = f"{path}.weight" if path else "weight"
        if id(weight) in seen or not (isinstance(weight, SparseTensor) or _pruned(module, weight)):
            continue
        seen.add(id(weight))
        if not _packable(module):
            skipped[name] = (
                f"packed kernels are for Linear, Conv1D, and Conv2d without groups; this is {type(module).__name__}"
            )
        elif weight.dtype not in STORED or weight.device.type not in ("cpu", "cuda"):
            where = f"{weight.dtype} on {weight.device}"
            skipped[name] = f"packed kernels are for float32 and half precision on a CPU or a CUDA GPU, not {where}"
        elif weight.is_cuda and not isinstance(module, nn.Linear):
            skipped[name] = f"packed kernels on a GPU are for Linear; this is {type(module).__name__}"
        else:
            found[name] = module
    return found, skipped


def _packable(module: nn.Module) -> bool:
    if inputs_first(module):
        return True
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros"
    return type(module) in (nn.Linear, FusedLinear)


def _pruned(module: nn.Module, weight: Tensor) -> bool:
    if not _packable(module) or weight.numel() == 0:
        return False
    return float((weight.detach() == 0).float().mean()) >= _PRUNED


@contextmanager
def _watching(weights: dict[str, nn.Linear | nn.Conv2d]) -> Iterator[dict[str, set[tuple[int, ...]]]]:
    shapes: dict[str, set[tuple[int, ...]]] = {}
    hooks = []
    for name, module in weights.items():

        def note(module: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
            x = args[0] if isinstance(module, nn.Conv2d) or args[0].dim() == 1 else args[0].flatten(0, -2)
            shapes.setdefault(name, set()).add(tuple(x.shape))

        hooks.append(module.register_forward_pre_hook(note))
    try:
        yield shapes
    finally:
        for hook in hooks:
            hook.remove()


def _shapes(
    model: nn.Module, inputs: Any, weights: dict[str, nn.Linear | nn.Conv2d]
) -> dict[str, set[tuple[int, ...]]]:
    """Return the shapes that each layer sees in one call of the model."""
    if inputs is None:
        return {}
    training = {m: m.training for m in model.modules()}
    model.eval()  # dropout would draw random numbers, batch norm would learn from the example
    try:
        with _watching(weights) as shapes, torch.no_grad():
            if isinstance(inputs, dict):
                model(**inputs)
            else:
                model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
    finally:
        for module, mode in training.items():
            module.training = mode
    return shapes


def _call(module: nn.Linear | nn.Conv2d) -> Callable[[Tensor, Tensor], Tensor]:
    bias = None if module.bias is None else module.bias.detach()
    if inputs_first(module):
        return lambda x, weight: torch.addmm(bias, x, weight)  # type: ignore[arg-type]
    if isinstance(module, nn.Linear):
        return lambda x, weight: F.linear(x, weight, bias)
    options = (module.stride, module.padding, module.dilation, module.groups)
    return lambda x, weight: F.conv2d(x, weight, bias, *options)  # type: ignore[arg-type]


def _pack_one(
    name: str, module: nn.Linear | nn.Conv2d, shapes: list[tuple[int, ...]], tune: bool, even: bool
) -> PackedLayer:
    weight = module.weight.detach()
    dense = weight.to_dense() if isinstance(weight, SparseTensor) else weight
    mask = weight.mask() if isinstance(weight, SparseTensor) else dense != 0
    sparsity = 1 - float(mask.float().mean()) if mask.numel() else 0.0
    call = _call(module)
    tokens = tuple(_tokens(module, s) for s in shapes)
    candidates = _candidates(module, mask, dense)
    times: dict[Format, Timing]
    if tune:
        times = measure(dense, mask, call, candidates, shapes, even)
    else:
        times = guess(dense, mask, candidates, tokens, even)
    best = fastest(times, even)
    packed = times[best].tensor if not isinstance(best, Dense) else dense
    replace(module.weight, packed)
    size = packed.nbytes if isinstance(packed, SparseTensor) else packed.numel() * packed.element_size()
    before, seconds, shape = times[Dense()].seconds(even), times[best].seconds(even), tuple(dense.shape)
    return PackedLayer(
        name,
        shape,
        sparsity,
        tokens,
        str(best),
        before * 1e6,
        seconds * 1e6,
        size,
        dense.numel() * dense.element_size(),
    )


def _candidates(module: nn.Module, mask: Tensor, dense: Tensor) -> list[Format]:
    """Formats with kernels that hold the weight where it is."""
    if dense.is_cuda:
        return pack_gpu.fitting(mask.flatten(1), dense.dtype)
    if inputs_first(module):
        return [turned for format in fitting(mask.t()) if (turned := format.transposed())]
    return fitting(mask.flatten(1))


def _tokens(module: nn.Linear | nn.Conv2d, shape: tuple[int, ...]) -> int:
    """How many vectors the layer multiplies by its weight."""
    if not isinstance(module, nn.Conv2d):
        return torch.Size(shape[:-1]).numel()
    plain = nn.Conv2d(1, 1, module.kernel_size, module.stride, module.padding, module.dilation, device="meta")  # type: ignore[arg-type]
    *batch, _, height, width = shape
    return plain(torch.empty(*batch, 1, height, width, device="meta")).numel()
