"""Stored weights: values as a parameter, index arrays as buffers, and the SparseTensor that consists of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.core.join import build, gather
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import scatter
from gossamer.formats import Dense, Structure
from gossamer.formats import values as plain
from gossamer.formats.values import mask_padding
from gossamer.models.held import Checked, Held
from gossamer.models.home import version_of
from gossamer.models.state import moved

#: Does a transform of torch.func (vmap, grad, jvp ...) run here?
transforming = torch._C._are_functorch_transforms_active


def array_names(held: Held) -> list[str]:
    """Return the names of the index arrays of a weight."""
    stack = held.format.stack(len(held.shape)) if held.format is not None else ()
    return [f"{array}{i}" for i, level in enumerate(stack) for array in level.arrays]


def structure_of(module: nn.Module, name: str, held: Held) -> Structure:
    """Return the structure of a stored weight; it is checked again if its arrays are others than last time."""
    if not torch.compiler.is_compiling() and held.checked is not None and _unchanged(module, held.checked):
        return held.checked.structure
    arrays: dict[str, Any] = {array: module._buffers[f"{name}_{array}"] for array in array_names(held)}
    values: Any = module._parameters[f"{name}_values"]
    structure = Structure(held.format, held.shape, arrays, values.device)  # type: ignore[arg-type]
    if not torch.compiler.is_compiling():
        if not values.is_meta:
            structure.check(values.detach())
        trust(name, held, structure, values)
    return structure


def trust(name: str, held: Held, structure: Structure, values: Tensor) -> None:
    """Note that the arrays of a structure are right as they are now, and have as many values as these."""
    arrays = structure.arrays.items()
    known = tuple((f"{name}_{part}", array, version_of(array)) for part, array in arrays)
    held.checked = Checked(structure, known, f"{name}_values", tuple(values.shape))


def _unchanged(module: nn.Module, checked: Checked) -> bool:
    """Are the arrays of a weight those that were checked, and was nothing written to them since?"""
    buffers = module._buffers
    for key, array, version in checked.arrays:  # a plain loop for speed: every call of a layer runs it
        if buffers.get(key) is not array or (array._version if not array.is_inference() else -1) != version:
            return False
    values = module._parameters.get(checked.values)
    return values is not None and values.shape == checked.shape  # a kernel would read beyond shorter ones


class Owner:
    """What a SparseTensor made of a module's weight knows of it: writes go to the module, gradients come from there."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    @property
    def grad(self) -> Tensor | None:
        """Gradient of the values, as a SparseTensor."""
        held: Held = self.module._sparse[self.name]  # type: ignore[index, assignment]
        values: Any = self.module._parameters[f"{self.name}_values"]
        if values.grad is None or held.latest is not None:
            return None if values.grad is None else held.latest
        return SparseTensor(values.grad, structure_of(self.module, self.name, held))

    def store(self, values: Tensor, structure: Structure) -> None:
        """Take other values and another pattern."""
        store(self.module, self.name, values, structure)


class _ReadWhole(torch.autograd.Function):
    """The weight that values are, for a gradient that is wanted at every position: it is collected on its way."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, structure: Structure, held: Held, parameter: Tensor) -> SparseTensor:
        ctx.structure, ctx.held, ctx.parameter = structure, held, parameter
        return SparseTensor(values.view_as(values), structure, grad_format=Dense())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        whole = grad.to_dense() if isinstance(grad, SparseTensor) else grad
        ctx.held.collect(whole, first=ctx.parameter.grad is None)
        return gather(grad, ctx.structure), None, None, None


def read(module: nn.Module, name: str, held: Held) -> Tensor:
    """Return a stored weight as a SparseTensor; in a trace or a torch.func transform, as a dense tensor made there."""
    values: Any = module._parameters[f"{name}_values"]
    structure = structure_of(module, name, held)
    if torch.compiler.is_compiling():
        return scatter(mask_padding(values, structure), structure)
    if transforming():
        return plain.scatter(mask_padding(values, structure), structure)
    if not (torch.is_grad_enabled() and values.requires_grad):
        weight = SparseTensor(values.detach(), structure)
    elif held.whole or held.collects:
        held.ranks = ranks_of_ddp()
        weight = _ReadWhole.apply(values, structure, held, values)
    else:
        weight = build(values, structure)
    for mark, value in values.__dict__.items():  # attributes that other libraries have set, such as transformers
        if mark != "home":
            setattr(weight, mark, value)
    weight._owner, weight._is_weight = Owner(module, name), True
    return weight


def ranks_of_ddp() -> Any:
    """Return the process group of the DDP whose forward pass is running; None outside one."""
    active = DistributedDataParallel._active_ddp_module
    return None if active is None else active.process_group


@torch.no_grad()
def store(module: nn.Module, name: str, values: Tensor, structure: Structure) -> None:
    """Give a stored weight of a module other values and another pattern, in the same format."""
    held: Held = module._sparse[name]  # type: ignore[index, assignment]
    parameter = module._parameters[f"{name}_values"]
    if structure.format != held.format:
        raise ValueError(f"{name} is stored in {held.format}; a pattern in {structure.format} can't take its place")
    assert parameter is not None
    with suppress(ValueError):  # after to_empty the arrays are uninitialised, and no optimizer has seen them
        moved(parameter, structure_of(module, name, held), structure)
    set_data(parameter, values)
    for array, tensor in structure.arrays.items():
        module._buffers[f"{name}_{array}"] = tensor
    trust(name, held, structure, parameter)


def set_data(parameter: nn.Parameter, values: Tensor) -> None:
    """Let a parameter hold other data, of any shape; it stays the same object to optimizers.

    A graph of autograd that is still alive (most loops keep the last loss) holds a node that adds to this parameter and
    remembers its shape, and the next forward pass would find that node again. Data of another type in between makes
    torch forget it.
    """
    values = values.detach()
    if not torch._has_compatible_shallow_copy_type(parameter, values):  # it was on the meta device
        torch.utils.swap_tensors(parameter, nn.Parameter(values, parameter.requires_grad))
        return
    if values.shape != parameter.shape:
        parameter.grad = None
        other = torch.float64 if values.dtype != torch.float64 else torch.float32
        parameter.data = values.new_empty(0, dtype=other)
    parameter.data = values
