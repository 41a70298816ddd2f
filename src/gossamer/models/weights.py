"""Weights of a model by name, for any way of storing them: read them as dense or sparse, change their format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked, Structure
from gossamer.models.held import Held
from gossamer.models.home import home_of
from gossamer.models.masked import MaskedParameter, clear_writes
from gossamer.models.modules import held_by, hold_masked, hold_stored, release, watch_gradient
from gossamer.models.state import moved
from gossamer.models.stored import set_data
from gossamer.ops.sparsified import Output
from gossamer.ops.sparsify import apply_mask


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight of a model: its name, and the modules that have it. A tied weight has several.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    >>> weight = all_weights(model)["0.weight"]
    >>> weight.become(torch.ones(4, 8), torch.eye(4, 8, dtype=torch.bool), gs.CSR())
    >>> weight.format, model[0].weight.nnz
    (CSR(), 4)
    """

    name: str
    places: tuple[tuple[nn.Module, str], ...]
    names: tuple[str, ...]  # one for each place

    @property
    def module(self) -> nn.Module:
        """The first module that has it."""
        return self.places[0][0]

    @property
    def held(self) -> Held | None:
        """How the module stores it; None for a plain dense weight."""
        module, name = self.places[0]
        return held_by(module).get(name)

    @property
    def parameter(self) -> nn.Parameter:
        """What is trained: the dense values, or the stored ones. The object stays the same if the format changes."""
        module, name = self.places[0]
        held = self.held
        found = module._parameters[f"{name}_values" if held is not None and held.is_stored else name]
        assert found is not None
        if held is not None and not held.is_stored:
            getattr(module, name)  # this also synchronises its mask
        return found

    @property
    def format(self) -> Format:
        """How it is stored; ``Dense()`` for a plain parameter."""
        held = self.held
        return Dense() if held is None or held.format is None else held.format

    @property
    def is_sparse(self) -> bool:
        """Is it masked or stored?"""
        return not isinstance(self.format, Dense)

    @property
    def foreign(self) -> bool:
        """Is it a tensor subclass of another library, such as a quantized tensor of torchao?"""
        module, name = self.places[0]
        found = module._parameters.get(name)
        known = type(found).__module__.startswith(("torch.", "gossamer."))  # DTensor, and our own
        return self.held is None and is_traceable_wrapper_subclass(found) and not known

    @property
    def shape(self) -> torch.Size:
        """Its shape as a dense tensor."""
        held = self.held
        return self.parameter.shape if held is None else held.shape

    @property
    def structure(self) -> Structure:
        """The index arrays of a masked or stored weight."""
        return self.sparse().structure

    def dense(self) -> Tensor:
        """Return the values as an ordinary detached tensor; only for a stored weight this makes a copy."""
        if isinstance(self.format, Dense | Masked):
            parameter, home = self.parameter, home_of(self.parameter)
            if home is not None:
                clear_writes(parameter, home)
            return parameter.detach()
        return self.sparse().to_dense()

    def sparse(self) -> SparseTensor:
        """Return the weight as a detached SparseTensor that shares its memory."""
        module, name = self.places[0]
        if not self.is_sparse:
            raise TypeError(f"{self.name} is dense: call gs.sparsify_ first")
        with torch.no_grad():
            weight = getattr(module, name)
        return (
            weight.sparse() if isinstance(weight, MaskedParameter) else SparseTensor(weight._values, weight.structure)
        )

    def mask(self) -> Tensor:
        """Return a bool tensor, True where a value is kept (everywhere for a dense weight). Don't write to it."""
        parameter = self.parameter
        if not self.is_sparse:
            return torch.ones(parameter.shape, dtype=torch.bool, device=parameter.device)
        return parameter.known_mask() if isinstance(parameter, MaskedParameter) else self.sparse().mask()

    @torch.no_grad()
    def become(self, values: Tensor, mask: Tensor | None = None, format: Format | None = None) -> None:
        """Set the values, the mask and the format; the trained parameter stays the same object.

        If an optimizer has state for it, the state is converted before its next step.

        Parameters
        ----------
        values
            A dense tensor of the weight's shape; or a SparseTensor, whose mask and format are then used.
        mask
            Which values to keep; None for all.
        format
            ``Dense()``, ``Masked()`` or any other; None keeps the current format.
        """
        format = self.format if format is None else format
        tensor: Any
        if isinstance(values, SparseTensor):
            format, tensor = values.format, values
        elif isinstance(format, Dense | Masked):
            tensor = None
        else:
            tensor = apply_mask(values, everywhere(values) if mask is None else mask, format)
        held, before = self.held, self.structure if self.is_sparse else None
        if isinstance(format, Dense):
            self._become_dense(values)
        elif isinstance(format, Masked):
            mask = tensor.mask() if tensor is not None else everywhere(values) if mask is None else mask
            self._become_masked(values if tensor is None else tensor._values, mask)
        else:
            self._become_stored(tensor)
        now = self.held
        if held is not None and now is not None:
            now.gradient, now.rule, now.open = held.gradient, held.rule, held.open
            self.collect_gradient(held.collects)
        moved(self.parameter, before, self.structure if self.is_sparse else None)

    def collect_gradient(self, wanted: bool) -> None:
        """Collect the gradient at every position from now on, or stop and forget what was collected."""
        held = self.held
        if held is not None:
            held.collects, held.collected = wanted, None
            home = home_of(self.parameter)
            if home is not None:
                home.watch(self.parameter)

    def sparsify_gradient(self, how: Output) -> None:
        """Let the gradient of this weight be made sparse from now on, once it is complete."""
        for module, name in self.places[:1]:
            watch_gradient(module, name, how)

    def _become_dense(self, values: Tensor) -> None:
        for module, name in self.places:
            release(module, name)
        _fill(self.parameter, values)

    def _become_masked(self, values: Tensor, mask: Tensor) -> None:
        if not isinstance(self.format, Masked):
            self._become_dense(values)
        else:
            _fill(self.parameter, values)
        hold_masked(*self.places[0], mask)  # the parameter itself is masked: one module manages it for all

    def _become_stored(self, tensor: SparseTensor) -> None:
        for module, name in self.places:
            release(module, name)
        parameter = self.parameter
        set_data(parameter, tensor._values)
        for module, name in self.places:
            hold_stored(module, name, tensor.structure)


def everywhere(values: Tensor) -> Tensor:
    """Return a mask that keeps all of a tensor."""
    return torch.ones(values.shape, dtype=torch.bool, device=values.device)


def _fill(parameter: nn.Parameter, values: Tensor) -> None:
    if parameter.shape != values.shape or parameter.is_meta:
        set_data(parameter, values.clone())
    elif parameter.data_ptr() != values.data_ptr():
        parameter.data.copy_(values)


def check_model(model: Any) -> None:
    """Raise TypeError for anything but a module.

    Examples
    --------
    >>> import torch
    >>> check_model(torch.ones(2))
    Traceback (most recent call last):
        ...
    TypeError: the model must be a torch.nn.Module, got a Tensor. For a tensor there is gs.sparsify
    """
    if not isinstance(model, nn.Module):
        is_class = isinstance(model, type)
        given = f"the class {model.__name__}: create it first" if is_class else f"a {type(model).__name__}"
        other = ". For a tensor there is gs.sparsify" if isinstance(model, Tensor) else ""
        raise TypeError(f"the model must be a torch.nn.Module, got {given}{other}")


def all_weights(model: nn.Module) -> dict[str, Weight]:
    """Return every parameter of a model by its name in the dense model; tied parameters are listed once.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> list(all_weights(gs.sparsify_(torch.nn.Linear(8, 4), "75%", format=gs.CSR())))
    ['weight', 'bias']
    """
    check_model(model)
    found: dict[int, list[tuple[str, tuple[nn.Module, str]]]] = {}
    for path, module in model.named_modules():
        for name, parameter in _parameters(module):
            found.setdefault(id(parameter), []).append((f"{path}.{name}" if path else name, (module, name)))
    weights = (Weight(each[0][0], tuple(p for _, p in each), tuple(n for n, _ in each)) for each in found.values())
    return {weight.name: weight for weight in weights}


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    stored = {f"{name}_values": name for name, held in held_by(module).items() if held.is_stored}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield stored.get(name, name), parameter


def sparse_weights(model: nn.Module) -> dict[str, Weight]:
    """Return the masked and stored weights of a model by name.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> list(sparse_weights(gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(8, 4)), "75%")))
    ['0.weight']
    """
    return {name: weight for name, weight in all_weights(model).items() if weight.is_sparse}
