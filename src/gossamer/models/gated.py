"""Gated MLPs, ``down(activation(gate(x)) * up(x))``: how they are found, and their first half in one launch.

An MLP whose gate and up are packed or quantized for sparse tensor cores gets a function ``forward`` of its own, which
computes both products, the activation and the multiplication in one kernel. The layers are not changed: for
``state_dict``, LoRA and ``save_pretrained`` there are two of them. Where the kernel doesn't take a call (a CPU,
gradients, autocast, a layer that was replaced or has hooks), the ``forward`` of the class computes it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels import product as kernels
from gossamer.kernels.vnm.gated import ROWS, pays
from gossamer.kernels.vnm.operators import columns_of
from gossamer.models.activations import code_of, is_elementwise
from gossamer.models.forward import is_ours
from gossamer.models.modules import dense_class
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.stored import structure_of, transforming

_HALF = torch.float16, torch.bfloat16
_PRODUCTS = operator.mul, torch.mul


class Parts(NamedTuple):
    """The layers of a gated MLP by their names, and its activation: the name of a module, or a function."""

    gate: str
    up: str
    down: str
    activation: str | Callable[[Tensor], Tensor]

    def activation_of(self, mlp: nn.Module) -> Any:
        """Return the activation that the module has now."""
        return mlp._modules[self.activation] if isinstance(self.activation, str) else self.activation


class _Layers(fx.Tracer):
    """Follows the function of one module; those inside it are single steps."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def parts_of(module: nn.Module) -> Parts | None:
    """Return the parts of a gated MLP, or None for any other module.

    Examples
    --------
    >>> import torch
    >>> class Gated(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w1, self.w2, self.w3 = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
    ...     def forward(self, x):
    ...         return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))
    >>> parts_of(Gated())[:3], parts_of(torch.nn.Linear(4, 4))
    (('w1', 'w3', 'w2'), None)
    """
    if sum(map(is_linear, module.children())) != 3:
        return None
    try:
        nodes = [node for node in _Layers().trace(module).nodes if node.op != "get_attr"]
    except Exception:  # a function that depends on values or shapes, or calls something that can't be followed
        return None
    if len(nodes) != 7 or [nodes[0].op, nodes[-1].op] != ["placeholder", "output"]:
        return None
    down = nodes[-1].args[0]
    product = _input(down)
    if not _is_layer(module, down) or product is None or product.target not in _PRODUCTS:
        return None
    for gated, up in (product.args, product.args[::-1]):
        gate, activation = _input(gated), _activation(module, gated)
        layers = _is_layer(module, gate) and _is_layer(module, up)
        if layers and activation is not None and _input(gate) is _input(up) is nodes[0]:
            return Parts(gate.target, up.target, down.target, activation)
    return None


def _input(node: Any) -> Any:
    """Return the step whose result a step reads first."""
    return node.args[0] if isinstance(node, fx.Node) and node.args else None


def is_linear(module: nn.Module | None) -> bool:
    """Is it a linear layer, as it was made or in a form of ours?"""
    return module is not None and (dense_class(module) is nn.Linear or isinstance(module, QuantizedLinear))


def _is_layer(module: nn.Module, node: Any) -> bool:
    called = isinstance(node, fx.Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs
    return called and is_linear(module._modules.get(str(node.target)))  # a layer of its own, not of a part


def _activation(module: nn.Module, node: Any) -> Any:
    """Return the activation that a step is, as :class:`Parts` has it, if it works element by element."""
    if not isinstance(node, fx.Node) or len(node.args) != 1:
        return None
    found: Any = module._modules.get(str(node.target)) if node.op == "call_module" else node.target
    usual = all(value in (False, "none") for value in node.kwargs.values())  # of options
    return node.target if usual and is_elementwise(found) else None


def gates_and_ups(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return the gate and the up of every gated MLP of a model: they read the same input.

    Examples
    --------
    >>> import torch
    >>> gates_and_ups(torch.nn.Linear(4, 4))
    []
    """
    found = [(module, parts_of(module)) for module in model.modules()]
    return [(m.get_submodule(parts.gate), m.get_submodule(parts.up)) for m, parts in found if parts is not None]


# -- in one launch


class Weights(NamedTuple):
    """Arrays of a layer as the kernel reads them."""

    values: Tensor
    meta: Tensor
    shared: Tensor
    scale: Tensor | None
    sizes: tuple[int, int, int]  # rows, cols, m


def weights_of(layer: nn.Module) -> Weights | None:
    """Return the arrays of a layer that the kernel can multiply, or None."""
    if isinstance(layer, QuantizedLinear):
        layout, held = layer.layout, layer._buffers
        if layer._group is not None or layer.bias is not None or not layout.m or layout.weights_only:
            return None
        sizes = (*layer.shape, layout.m)
        if layout.v != "all":
            return None
        return Weights(held["values"], held["meta"], held["shared"], held["scale"], sizes)  # type: ignore[arg-type]
    sparse = layer.__dict__.get("_sparse", {}).get("weight")
    if sparse is None or dense_class(layer) is not nn.Linear or layer.bias is not None or layer.__dict__.get("_lent"):
        return None
    format = sparse.format
    if not isinstance(format, PackedVNM) or (format.v, format.bits) != ("all", 16) or not is_ours(format):
        return None
    parameter: Any = layer._parameters["weight_values"]
    found = structure_of(layer, "weight", sparse).arrays
    return Weights(parameter, found["meta1"], found["cols1"], None, (*sparse.shape, format.m))


class Gated:
    """The function ``forward`` of a gated MLP.

    Parameters
    ----------
    mlp, parts
        The module, and what :func:`parts_of` says of it.
    """

    def __init__(self, mlp: nn.Module, parts: Parts) -> None:
        self.mlp, self.parts = mlp, parts
        self.same: tuple[Tensor, int, Tensor, int] | None = None  # shared columns that were compared, with versions

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        if len(args) == 1 and not options:
            half = self._first_half(args[0])
            if half is not None:
                out: Tensor = self.mlp._modules[self.parts.down](half)  # type: ignore[misc]
                return out
        forward: Any = type(self.mlp).forward
        out = forward(self.mlp, *args, **options)
        return out

    def _first_half(self, x: Tensor) -> Tensor | None:
        """Return activation(gate(x)) * up(x) by one kernel, or None."""
        modules: Any = self.mlp._modules
        gate, up, activation = modules[self.parts.gate], modules[self.parts.up], self.parts.activation_of(self.mlp)
        code = code_of(activation)
        if not _on_hopper(x) or x.dtype not in _HALF or transforming() or torch._C._is_any_autocast_enabled():
            return None
        if not code or any(_has_hooks(part) for part in (gate, up, activation)):
            return None
        first, second = weights_of(gate), weights_of(up)
        if first is None or second is None or not self._fits(first, second) or x.shape[-1] != first.sizes[1]:
            return None
        if (first.scale is None and first.values.dtype is not x.dtype) or x.dim() < 2 or not x.numel():
            return None
        _, cols, m = first.sizes
        if kernels.needed(x, first.values, second.values) or not pays(x.numel() // cols, cols, m):
            return None
        return _product(first, second, x, code)

    def _fits(self, first: Weights, second: Weights) -> bool:
        """Can one kernel multiply both?"""
        if first.sizes != second.sizes or first.sizes[0] % ROWS or first.values.dtype is not second.values.dtype:
            return False
        return first.sizes[2] == 4 or self._have_same_columns(first.shared, second.shared)

    def _have_same_columns(self, first: Tensor, second: Tensor) -> bool:
        known = self.same
        if torch.compiler.is_compiling():  # what was compared before
            return known is not None and known[0] is first and known[2] is second
        if known is None or known[0] is not first or known[2] is not second or known[1::2] != _versions(first, second):
            if not torch.equal(first, second):
                return False
            self.same = first, _versions(first, second)[0], second, _versions(first, second)[1]
        return True


def _versions(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


def _product(first: Weights, second: Weights, x: Tensor, activation: int) -> Tensor:
    rows, cols, m = first.sizes
    shared = first.shared
    if torch.compiler.is_compiling() and first.scale is None and m != 4 and cols % (16 * m) == 0:
        x, shared = x.index_select(-1, columns_of(shared, m)), shared.new_empty(0)  # fused with what computes x
        cols, m = x.shape[-1], 4
    out: Tensor = torch.ops.gossamer.vnm_gated.default(
        first.values, first.meta, second.values, second.meta, shared, first.scale, second.scale, x, rows, cols, m,
        activation,
    )  # fmt: skip
    return out


def _has_hooks(part: Any) -> bool:
    return isinstance(part, nn.Module) and bool(part._forward_hooks or part._forward_pre_hooks)


def _on_hopper(x: Any) -> bool:
    return type(x) is Tensor and x.is_cuda and _has_kernel(x.get_device())


def _has_kernel(device: int) -> bool:
    """A constant in traces."""
    return gpu.capability(device) == (9, 0)


_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gate_(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Let gated MLPs compute their first half by one kernel, in place; returns the gates and ups of those that can."""
    found = []
    for module in model.modules():
        ungate(module)
        parts = parts_of(module)
        if parts is None or "forward" in module.__dict__:
            continue
        layers = module.get_submodule(parts.gate), module.get_submodule(parts.up)
        weights, gated = [weights_of(layer) for layer in layers], Gated(module, parts)
        if code_of(parts.activation_of(module)) and all(weights) and gated._fits(*weights):  # type: ignore[arg-type]
            module.__dict__["forward"] = gated
            found.append(layers)
    return found


def ungate(module: nn.Module) -> None:
    """Let a module compute by the function of its class again, if it is a gated MLP."""
    if isinstance(module.__dict__.get("forward"), Gated):
        del module.__dict__["forward"]
