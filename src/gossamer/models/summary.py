"""The contents of a model, and its operations: gs.summary and gs.count_flops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.opaque import Opaque
from gossamer.formats.values import is_computed_from, share_of_zeros
from gossamer.models.modules import dense_class
from gossamer.models.names import LAYERS, inputs_first
from gossamer.models.opaque import names_of_parts
from gossamer.models.quantize import QUANTIZED
from gossamer.models.quantized_experts import quantized_weights
from gossamer.models.weights import Weight, all_weights, check_model


@dataclass(frozen=True)
class Row:
    """One parameter of a model."""

    name: str
    shape: tuple[int, ...]
    format: str
    density: float
    bytes: int
    dense_bytes: int


@dataclass(frozen=True)
class Summary:
    """The result of :func:`gossamer.summary`; print it, or read ``rows``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.summary(gs.sparsify_(torch.nn.Linear(8, 8), "75%", format=gs.CSR())).density
    0.3333333333333333
    """

    rows: tuple[Row, ...]

    @property
    def density(self) -> float:
        """Share of the model's values that are kept; of dense weights, that are not zero."""
        total = sum(torch.Size(r.shape).numel() for r in self.rows)
        return sum(r.density * torch.Size(r.shape).numel() for r in self.rows) / total if total else 1.0

    @property
    def bytes(self) -> int:
        """Bytes of all parameters as they are stored."""
        return sum(r.bytes for r in self.rows)

    @property
    def dense_bytes(self) -> int:
        """Bytes of all parameters if they were dense."""
        return sum(r.dense_bytes for r in self.rows)

    def __str__(self) -> str:
        from rich.console import Console  # imported here because it takes a tenth of gossamer's import time
        from rich.table import Table

        table = Table(title=None)
        table.add_column("parameter", overflow="fold")  # names are complete, on two lines if they are long
        table.add_column("shape")
        table.add_column("format")
        for column in ("sparsity", "kB", "of dense"):
            table.add_column(column, justify="right")
        for r in self.rows:
            share = r.bytes / max(r.dense_bytes, 1)
            shape = " x ".join(map(str, r.shape)) or "scalar"
            table.add_row(r.name, shape, r.format, f"{1 - r.density:.1%}", f"{r.bytes / 1e3:,.1f}", f"{share:.2f}x")
        share = self.bytes / max(self.dense_bytes, 1)
        table.add_section()
        table.add_row("all", "", "", f"{1 - self.density:.1%}", f"{self.bytes / 1e3:,.1f}", f"{share:.2f}x")
        console = Console(width=120, force_jupyter=False)
        with console.capture() as captured:
            console.print(table)
        return captured.get().rstrip()


def summary(model: nn.Module) -> Summary:
    """List the parameters of a model: shape, format, sparsity and bytes.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> s = gs.summary(gs.sparsify_(torch.nn.Linear(8, 8), "75%"))
    >>> [(r.name, r.format, r.density) for r in s.rows]
    [('weight', 'Masked()', 0.25), ('bias', 'Dense()', 1.0)]
    """
    check_model(model)
    small: dict[str, Any] = {name: m for name, m in model.named_modules() if isinstance(m, QUANTIZED)}
    opaque = names_of_parts(model)
    rows = [_row(name, weight) for name, weight in all_weights(model).items() if name not in opaque]
    rows += [_opaque_row(name, weight) for name, weight in dict(opaque.values()).items()]
    rows += [_quantized_row(f"{n}.{'packed' if hasattr(m, 'packed') else 'values'}", m) for n, m in small.items()]
    rows += [_quantized_row(f"{name}_values", weight) for name, weight in quantized_weights(model).items()]
    return Summary(tuple(rows))


def _quantized_row(name: str, layer: Any) -> Row:
    name = name.lstrip(".")
    size = torch.Size(layer.shape).numel()
    return Row(name, layer.shape, str(layer.layout), layer.nnz / max(size, 1), layer.nbytes, layer.dense_bytes)


def _opaque_row(name: str, weight: Opaque) -> Row:
    size = weight.numel() * weight.dtype.itemsize
    return Row(name, tuple(weight.shape), type(weight).__name__, weight.density, weight.nbytes, size)


def _row(name: str, weight: Weight) -> Row:
    shape, size = tuple(weight.shape), weight.parameter.element_size()
    dense = weight.shape.numel() * size
    if not weight.is_sparse:
        whole = weight.foreign or is_computed_from(name)
        density = 1.0 if whole else 1 - share_of_zeros(weight.parameter.detach())
        return Row(name, shape, "Dense()", density, dense, dense)
    tensor = weight.sparse()
    return Row(name, shape, str(weight.format), tensor.density, tensor.nbytes, dense)


@dataclass(frozen=True)
class Flops:
    """Multiplications and additions of one forward pass: with sparse weights, and if all weights were dense."""

    sparse: int
    dense: int
    layers: dict[str, tuple[int, int]]

    @property
    def ratio(self) -> float:
        """Sparse over dense."""
        return self.sparse / max(self.dense, 1)


def count_flops(model: nn.Module, inputs: Any) -> Flops:
    """Count the operations of the linear and convolution layers in one forward pass (2 per weight and token).

    Parameters
    ----------
    model
        Any module; it is run once, without gradients.
    inputs
        A tensor, a tuple of arguments or a dict of keyword arguments.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(8, 8), "75%")
    >>> gs.count_flops(model, torch.randn(10, 8))
    Flops(sparse=320, dense=1280, layers={'': (320, 1280)})
    """
    counts: dict[str, tuple[int, int]] = {}

    def hook(name: str) -> Any:
        def count(module: nn.Module, args: Any, output: Tensor) -> None:
            weight: Any = module.weight
            outputs = output.shape[-1] if weight.dim() == 2 else output.shape[1]
            uses = output.numel() // max(outputs, 1)
            if dense_class(module).__name__.startswith("ConvTranspose"):
                uses = args[0].numel() // max(args[0].shape[1], 1)
            stored: Any = module if isinstance(module, QUANTIZED) else weight
            kept = stored.nnz if hasattr(stored, "nnz") else weight.numel()
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + 2 * uses * kept, before[1] + 2 * uses * weight.numel())

        return count

    kinds = (*LAYERS, *QUANTIZED)
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, kinds) or inputs_first(m)]
    handles = [module.register_forward_hook(hook(name)) for name, module in layers]
    args = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple) else (inputs,)
    kwargs = inputs if isinstance(inputs, dict) else {}
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return Flops(sum(s for s, _ in counts.values()), sum(d for _, d in counts.values()), counts)
