"""quantize_: layers with weights, and activations, of fewer bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Layout, Numbers, refusal
from gossamer.kernels.quantized.weight import quantized
from gossamer.models.dynamic_int8 import quantize_dynamic_
from gossamer.models.int8 import quantize_weights_
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.modules import dense_class
from gossamer.models.names import Where, chosen, inputs_first
from gossamer.models.quantize_experts import experts_weights, quantize_experts, tell_left
from gossamer.models.quantized import QuantizedLinear, empty_layer
from gossamer.models.surgery import put, put_all
from gossamer.models.weights import Weight, all_weights
from gossamer.patterns import NM, VNM, recognise

#: Layers of 8 bits or fewer whose weight is no parameter.
QUANTIZED = Int8Layer, QuantizedLinear
How = Literal["int8 weights", "int8", "fp8", "int4"]


def quantize_(
    model: nn.Module,
    how: How = "int8 weights",
    calibration: Iterable[Any] | None = None,
    *,
    where: Where = None,
) -> nn.Module:
    """Quantize linear layers, and convolutions on a CPU, in place, for inference: fewer bits for weights, activations.

    A weight that is tied to an embedding is not quantized. Call :func:`gossamer.pack_` afterwards: it measures which
    layout of each layer is fastest.

    Parameters
    ----------
    model
        Dense, or sparse in any format. For ``"int8 weights"`` it must be packed, by :func:`gossamer.pack_` or
        ``format=gs.formats.PackedCSR()``; layers that are not packed don't change.
    how
        ``"int8 weights"``: the values of packed layers, with activations and sums in float32
        (:class:`gossamer.models.Int8Linear`). For a CPU.

        ``"int8"``: every linear layer, with activations that are rounded to eight bits token by token. On a CPU
        :class:`gossamer.models.DynamicInt8Linear`, on a GPU :class:`gossamer.models.QuantizedLinear`. On a CPU also
        convolutions of one and two dimensions, with images that have one range each:
        :class:`gossamer.models.DynamicInt8Conv`. Depthwise, transposed and three-dimensional ones don't change.

        ``"fp8"``: the same in e4m3, for GPUs of compute capability 8.9 and later. Patterns 2:4 and V:N:M with V
        ``"all"`` run on sparse tensor cores of compute capability 9.0; dense layers and all other patterns, and other
        GPUs, multiply dense e4m3 (``torch._scaled_mm``), zeros included. For any other pattern with at most 60 %
        non-zeros, :func:`gossamer.pack_` also measures a bitmap (``"fp8 bitmap"``), which has fewer bytes and is for up
        to 64 tokens; it needs compute capability 9.0.

        ``"int4"``: the weights of 2:4 and V:N:M layers; other layers and the activations don't change. For few tokens,
        where memory bandwidth is the limit; compute capability 8.0 and later.

        ``"fp8"`` and ``"int4"`` also work on a CPU, slowly: for tests, and to prepare a model for a GPU.

        Experts of a mixture of experts become :class:`gossamer.models.QuantizedExperts` by ``"fp8"``, and by ``"int8"``
        on a GPU, if both of their weights are 2:4 or ``all:2:m``. Other experts keep their type, with a warning: dense
        ones and those of other patterns, for which there are no kernels, those stored as inputs x outputs (GPT-OSS),
        and those on GPUs of other compute capabilities than 9.0.
    calibration
        For ``"int8"`` on a CPU: batches, each a tensor, a tuple of positional or a dict of keyword arguments of the
        model. The activations of a layer are then rounded in one fixed range, from its smallest to its largest input in
        the batches; values outside saturate. This is a little faster and less exact. Without it, or if no batch reaches
        a layer, each token or image has its own range.
    where
        Which names: a glob, several globs, or a predicate of the name; all by default.

    Returns
    -------
    nn.Module
        The same model; if the model is itself a linear layer, its replacement.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    >>> x = torch.randn(4, 256)
    >>> _ = gs.sparsify_(model, "90%", format=gs.formats.PackedCSR())
    >>> before = model(x)
    >>> bool((gs.nn.quantize_(model)(x) - before).abs().max() < 0.01)
    True
    >>> model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(256, 256)), "90%")
    >>> gs.quantize_(model, "int8")[0]
    DynamicInt8Linear(in_features=256, out_features=256, bias=True, int8 lookup)
    >>> model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(256, 256)), gs.VNM("all", 2, 8))
    >>> gs.quantize_(model, "fp8")[0]
    QuantizedLinear(in_features=256, out_features=256, bias=True, fp8 all:2:8)
    """
    if how not in ("int8 weights", "int8", "fp8", "int4"):
        raise ValueError(f"how={how!r} must be 'int8 weights', 'int8', 'fp8' or 'int4'")
    if calibration is not None and how != "int8":
        raise ValueError("calibration is for how='int8': the others round no activations, or token by token")
    if how == "int8 weights":
        return quantize_weights_(model, where)
    weights = {name: weight for name, weight in all_weights(model).items() if _suits(weight)}
    experts = {} if how == "int4" else experts_weights(model)
    if how == "int8" and not any(weight.parameter.is_cuda for weight in (*weights.values(), *experts.values())):
        return quantize_dynamic_(model, where, calibration)
    if calibration is not None:
        raise ValueError("calibration is for a CPU: on a GPU each token has its own range")
    if not weights and not experts:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to quantize: it must be in float32, float16 or bfloat16, and "
            "not tied to an embedding. Layers that are already quantized don't count."
        )
    names = chosen({**weights, **experts}, where)
    made = _quantized_layers({name: weights[name] for name in names if name in weights}, how)
    made_experts, left = quantize_experts({name: experts[name] for name in names if name in experts}, how)
    made |= made_experts
    if not made:
        only = '"int4" is only for 2:4 and V:N:M layers, and there are none'
        raise ValueError(next((f"{name}: {reason}" for name, reason in left.items()), only))
    tell_left(left)
    return put_all(model, made)


def _quantized_layers(weights: Mapping[str, Weight], how: Numbers) -> dict[int, nn.Module]:
    """A quantized layer for each module that has one of these weights; ValueError before anything is changed."""
    made: dict[int, nn.Module] = {}
    for name, weight in weights.items():
        parameter = weight.parameter
        if parameter.is_cuda and (reason := refusal(how, gpu.capability(parameter.get_device()))):
            raise ValueError(f"{reason}: {'use int4 or int8' if how == 'fp8' else 'keep half precision'}")
        try:
            made |= {id(module): layer for module, layer in _quantized(weight, how)}
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return made


@torch.no_grad()
def _quantized(weight: Weight, how: Numbers) -> list[tuple[nn.Module, QuantizedLinear]]:
    """Each module with this weight, and a layer for it; tied ones hold the same arrays. None if int4 doesn't fit."""
    turned = inputs_first(weight.module)
    dense = weight.dense().t().contiguous() if turned else weight.dense()
    layout = usual(dense, how)
    if layout is None:
        return []
    arrays, shape = quantized(dense, layout), (dense.shape[0], dense.shape[1])
    layers: Any = [module for module, _ in weight.places]
    made = [QuantizedLinear(arrays, layout, m.bias, shape, dense.dtype, turned).train(m.training) for m in layers]
    for layer in made:
        layer.suit_device()
    return list(zip(layers, made, strict=True))


def usual(dense: Tensor, how: Numbers) -> Layout | None:
    """Return the layout that is mostly the fastest for a weight with these zeros; None if there is none.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> str(usual(gs.VNM("all", 2, 8).select(torch.rand(64, 64)).float(), "fp8")), str(usual(torch.ones(2, 2), "int8"))
    ('fp8 all:2:8', 'int8 dense')
    """
    found = shared_columns(dense != 0)
    if how == "int4":
        whole = found is not None and (found[0] == "all" or found[0] % 16 == 0)
        return Layout(how, *found, weights_only=True) if found is not None and whole else None
    return Layout(how, *found) if found is not None and found[0] == "all" else Layout(how)


def shared_columns(mask: Tensor) -> tuple[int | Literal["all"], int] | None:
    """Return V and M of the pattern 2:4 or V:N:M that a mask has; None if it has none.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> shared_columns(gs.NM(2, 4).select(torch.rand(8, 8))), shared_columns(torch.ones(8, 8, dtype=torch.bool))
    (('all', 4), None)
    """
    pattern = recognise(mask) if mask.numel() else None
    if isinstance(pattern, NM) and pattern.n <= 2 and pattern.m % 4 == 0:  # at most 2 of each 4
        return "all", 4
    if isinstance(pattern, VNM) and pattern.n == 2 and pattern.m <= 256:
        return pattern.v, pattern.m
    return None


def _suits(weight: Weight) -> bool:
    """Is it the weight of linear layers alone? One that is tied to an embedding is not."""
    linear = all(n == "weight" and (dense_class(m) is nn.Linear or inputs_first(m)) for m, n in weight.places)
    half = weight.parameter.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return linear and half and weight.parameter.device.type in ("cpu", "cuda")


def expect_quantized(
    model: nn.Module, layers: Mapping[str, tuple[Tensor, Mapping[str, tuple[torch.dtype, tuple[int, ...]]]]]
) -> dict[str, nn.Module]:
    """Put an empty QuantizedLinear where a linear layer of this name is; return what was there.

    ``layers``: the buffer ``format`` of each, and the types and shapes of its arrays.
    """
    taken, made = {}, {}
    for name, (text, parts) in layers.items():
        try:
            layer: Any = model.get_submodule(name)
        except AttributeError:
            continue  # the caller reports that it is missing
        if name and (isinstance(layer, QUANTIZED) or dense_class(layer) is nn.Linear or inputs_first(layer)):
            taken[name], made[name] = layer, empty_layer(layer, text, parts)
    for name, layer in made.items():
        put(model, name, layer)
    return taken
