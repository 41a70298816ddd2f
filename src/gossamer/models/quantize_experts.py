"""Which experts gs.quantize_ takes, and why it leaves others; and room for those that come from a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Numbers
from gossamer.kernels.quantized.stack import check_layout, layout_of, stacked
from gossamer.kernels.quantized.weight import Arrays
from gossamer.kernels.vnm.experts import ROWS
from gossamer.models.experts import is_experts
from gossamer.models.grouped import names_of
from gossamer.models.modules import dense_class
from gossamer.models.quantized import PARTS, read_format
from gossamer.models.quantized_experts import QuantizedExperts, quantized_experts
from gossamer.models.quantized_stack import QuantizedStack
from gossamer.models.routed import is_routed
from gossamer.models.surgery import put
from gossamer.models.weights import Weight, all_weights
from gossamer.patterns import NM, VNM, recognise
from gossamer.progress import watched

#: The text of a format, and types and shapes of arrays, as a file has them.
Said = tuple[Tensor, Mapping[str, tuple[torch.dtype, tuple[int, ...]]]]
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class _LeftError(ValueError):
    """Why experts are not quantized."""


def experts_weights(model: nn.Module) -> dict[str, Weight]:
    """Return the weights that hold one matrix an expert, by name.

    Examples
    --------
    >>> experts_weights(nn.Linear(4, 4))
    {}
    """
    return {name: w for name, w in all_weights(model).items() if is_experts(w.module, w.shape)}


def quantize_experts(taken: Mapping[str, Weight], numbers: Numbers) -> tuple[dict[int, nn.Module], dict[str, str]]:
    """Return quantized experts for the modules that have these weights, by ``id``; and the reasons of those left.

    Raises ValueError for weights that are not finite.
    """
    if not taken:
        return {}, {}
    modules: dict[str, dict[str, Weight]] = {}
    for name, weight in taken.items():
        path = name.rpartition(".")[0] or type(weight.module).__name__
        modules.setdefault(path, {})[weight.places[0][1]] = weight
    made: dict[int, nn.Module] = {}
    left: dict[str, str] = {}
    for path, weights in watched("quantizing experts", modules.items()):
        module = next(iter(weights.values())).module
        try:
            made[id(module)] = _quantized(module, weights, numbers)
        except _LeftError as reason:
            left[path] = str(reason)
    return made, left


def tell_left(left: Mapping[str, str]) -> None:
    """Warn of experts that keep their type, which are most of the bytes of a model."""
    for reason in dict.fromkeys(left.values()):
        names = [name for name, why in left.items() if why == reason]
        shown = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        warnings.warn(f"not quantized: {shown}: {reason}", stacklevel=3)


@torch.no_grad()
def _quantized(module: Any, weights: Mapping[str, Weight], numbers: Numbers) -> nn.Module:
    names = _suited(module, weights)
    stacks = {}
    for name in names:
        weight = weights[name]
        dense = weight.dense().detach()
        m = width_of_groups(dense != 0)
        if m is None:
            raise _LeftError(
                f"{name} is not 2:4, or all:2:m in each expert, and there are no {numbers} kernels for others"
            )
        layout = layout_of(numbers, dense.shape[1], m)
        try:
            arrays = stacked(dense, layout)
        except ValueError as error:
            raise ValueError(f"{weight.name}: {error}") from None
        stacks[name] = arrays, QuantizedStack(layout, (dense.shape[0], dense.shape[1], dense.shape[2]))
    dtype = weights[names[0]].parameter.dtype
    return quantized_experts(module, dense_class(module), stacks, dtype).train(module.training)


def _suited(module: Any, weights: Mapping[str, Weight]) -> tuple[str, str]:
    """Return the names of the weights of experts, if they are of a kind that can be quantized."""
    if not is_routed(dense_class(module)) or not hasattr(module, "is_transposed"):
        raise _LeftError(f"{dense_class(module).__name__} is no class of experts of transformers 5")
    if module.is_transposed:
        raise _LeftError("they are stored as inputs x outputs")
    names = names_of(module)
    if set(weights) != set(names):
        raise _LeftError(f"only {', '.join(weights)} is chosen: {' and '.join(names)} are quantized together")
    if any(len(weight.places) > 1 or weight.foreign for weight in weights.values()):
        raise _LeftError("their weights are tied, or tensors of another library")
    dtypes = {weight.parameter.dtype for weight in weights.values()}
    if len(dtypes) > 1 or dtypes.isdisjoint(_FLOATS):
        raise _LeftError("their weights are not both in float32, float16 or bfloat16")
    if any(weight.shape[1] % ROWS for weight in weights.values()):
        raise _LeftError(f"the outputs of an expert are no multiple of {ROWS}")
    device = weights[names[0]].parameter.device
    capability = gpu.capability(device.index or 0) if device.type == "cuda" else (9, 0)
    if capability != (9, 0):
        raise _LeftError(f"there are kernels for compute capability 9.0, and this GPU has {gpu.named(capability)}")
    if device.type not in ("cpu", "cuda"):
        raise _LeftError(f"they are on {device.type}")
    return names


def width_of_groups(mask: Tensor) -> int | None:
    """Return m if all experts keep 2 of every m columns, and the rows of each the same four; 4 for 2:4; else None.

    Examples
    --------
    >>> import gossamer as gs
    >>> patterns = gs.NM(2, 4), gs.VNM("all", 2, 8)
    >>> masks = [torch.stack([pattern.select(torch.rand(64, 32)) for _ in range(3)]) for pattern in patterns]
    >>> [width_of_groups(mask) for mask in (*masks, masks[0] | masks[1])]
    [4, 8, None]
    """
    if not mask.numel():
        return None
    fullest = int(mask.flatten(1).sum(1).argmax())
    pattern = recognise(mask[fullest])
    if isinstance(pattern, VNM) and pattern.v == "all" and pattern.n == 2 and pattern.m <= 256:
        m = pattern.m
    elif isinstance(pattern, NM) and pattern.n <= 2 and pattern.m % 4 == 0:  # at most 2 of each 4
        m = 4
    else:
        return None
    return next((each for each in dict.fromkeys((m, 4)) if all(_keeps(one, each) for one in mask)), None)


def _keeps(mask: Tensor, m: int) -> bool:
    """Do rows keep at most 2 of every m columns, and together 4?"""
    if mask.shape[1] % m and m != 4:
        return False
    groups = torch.nn.functional.pad(mask, (0, -mask.shape[1] % m)).unflatten(1, (-1, m))
    return int(groups.sum(2).max()) <= 2 and (m == 4 or int(groups.any(0).sum(1).max()) <= 4)


def expect_experts(model: nn.Module, weights: Mapping[str, Said]) -> dict[str, nn.Module]:
    """Put experts without data where a file has both weights of quantized ones; return what was there, by name."""
    modules: dict[str, dict[str, Said]] = {}
    for name, said in weights.items():
        path, _, last = name.rpartition(".")
        modules.setdefault(path, {})[last] = said
    made, taken = {}, {}
    for path, given in modules.items():
        try:
            module: Any = model.get_submodule(path)
        except AttributeError:
            continue  # the caller reports that it is missing
        quantized = isinstance(module, QuantizedExperts)
        if path and (quantized or _is_known(module)) and set(given) == set(names_of(module)):
            taken[path], made[path] = module, _empty(module, given)
    for path, module in made.items():
        put(model, path, module)
    return taken


def _is_known(module: nn.Module) -> bool:
    return is_routed(dense_class(module)) and not getattr(module, "is_transposed", True)


def _empty(module: Any, given: Mapping[str, Said]) -> QuantizedExperts:
    """Return experts without data in place of others, to be filled from a file."""
    if isinstance(module, QuantizedExperts):
        dense, dtype, device = module._dense_class, module.weights_dtype, module.device
        shapes = {name: stack.shape for name, stack in module.stacks.items()}
    else:
        own = {weight.places[0][1]: weight for weight in all_weights(module).values()}
        first = own[next(iter(given))].parameter
        dense, dtype, device = dense_class(module), first.dtype, first.device
        shapes = {name: (s[0], s[1], s[2]) for name, s in ((name, own[name].shape) for name in given)}
    stacks = {}
    for name, (text, parts) in _in_order(module, given):
        layout, _ = read_format(text)
        check_layout(layout, shapes[name])
        arrays = (torch.empty(parts[p][1], dtype=parts[p][0], device=device) if p in parts else None for p in PARTS)
        stacks[name] = Arrays(*arrays), QuantizedStack(layout, shapes[name])  # type: ignore[arg-type]
    made = quantized_experts(module, dense, stacks, dtype).train(module.training)
    for name, (text, _) in given.items():  # as long as in the file, which may name another type
        made.register_buffer(f"{name}_format", text.to(device))
    return made


def _in_order(module: Any, given: Mapping[str, Said]) -> Iterable[tuple[str, Said]]:
    return ((name, given[name]) for name in names_of(module))
