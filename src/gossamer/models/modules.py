"""Modules with sparse weights: ordinary parameters and buffers, and a class with the attribute ``weight``.

A weight is stored in one of two ways:

- **masked**: the parameter is dense, and zero outside its mask; the mask is a buffer, ``weight_mask``. A
  ``state_dict`` has only the dense weight, so it can be loaded anywhere.
- **stored**, in any other format: the values are a parameter, ``weight_values``, the index arrays are buffers
  (``weight_pos1``, ``weight_crd1``, ...), and ``weight_format`` is the name of the format as bytes.

The module's class is replaced by a subclass of it, ``SparseLinear`` for ``Linear``, in which ``weight`` is a property.
It returns the masked parameter itself, or a SparseTensor that is built on access. Inside a trace of
``torch.compile`` or ``torch.export`` there are only plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, Masked, Structure
from gossamer.models import forward, loading, stored
from gossamer.models.held import Held
from gossamer.models.home import move_out
from gossamer.models.masked import MaskedParameter, is_settled, settle
from gossamer.ops.sparsified import Output


class SparseModule(nn.Module):
    """Base class of modules with sparse weights.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(8, 4), "75%", format=gs.CSR())
    >>> model
    SparseLinear(in_features=8, out_features=4, bias=True, weight=CSR(), 75.0 % sparse)
    >>> [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    (['weight_values', 'bias'], ['weight_pos1', 'weight_crd1', 'weight_format'])
    """

    #: By the names of the weights.
    _sparse: dict[str, Held]
    #: The class that the module had, and has again when it is dense.
    _dense_class: type[nn.Module]

    def structure_of(self, name: str) -> Structure:
        """Return where the values of a stored weight lie."""
        return stored.structure_of(self, name, self._sparse[name])

    def settle_weights(self) -> None:
        """See that parameters know their module, and that masked ones have the masks that it has now."""
        for name, held in self._sparse.items():
            _settle(self, name, held)

    def extra_repr(self) -> str:
        said = [super().extra_repr()]
        for name, held in self._sparse.items():
            weight = getattr(self, name)
            if held.format is not None and not weight.is_meta and not stored.transforming():
                said.append(f"{name}={held.format}, {weight.sparsity:.1%} sparse".replace("% sparse", " % sparse"))
        return ", ".join(filter(None, said))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        held = self.__dict__.get("_sparse", {}).get(name)
        if held is not None and held.is_stored:
            raise ValueError(
                f"{name} is stored as {held.format}, and can't be replaced by another parameter: call gs.densify_ "
                "first, or load the new values with load_state_dict, which keeps the format"
            )
        super().register_parameter(name, param)

    # -- where torch moves, copies, saves and loads modules

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.settle_weights()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.settle_weights()

    def __reduce_ex__(self, protocol: Any) -> Any:
        names = tuple((name, held.is_stored) for name, held in self._sparse.items())
        return _rebuild, (self._dense_class, names), self.__getstate__()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.settle_weights()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        loading.note_masks(self, self._sparse, destination, prefix)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        given = dict(state_dict)  # what is ours is taken out of it; torch's own part sees the rest
        for name, held in self._sparse.items():
            loading.load(self, name, held, given, prefix, local_metadata)
        super()._load_from_state_dict(given, prefix, local_metadata, *rest)
        self.settle_weights()


def _settle(module: nn.Module, name: str, held: Held) -> None:
    parameter: Any = module._parameters.get(f"{name}_values" if held.is_stored else name)
    if not isinstance(parameter, nn.Parameter):
        return  # torch.func has put another tensor there for one call
    if held.gradient is not None:
        held.ranks = stored.ranks_of_ddp()
    settle(module, name, parameter, module._buffers[f"{name}_mask"] if isinstance(held.format, Masked) else None)


def _weight(name: str) -> property:
    """Return the property that answers for a sparse weight."""
    mask = f"{name}_mask"

    def read(self: Any) -> Tensor:
        parameter = self._parameters.get(name)
        if parameter is None:
            lent = self.__dict__.get("_lent", {})
            return lent[name] if name in lent else stored.read(self, name, self._sparse[name])
        if not torch.compiler.is_compiling() and not is_settled(self, parameter, self._buffers.get(mask)):
            _settle(self, name, self._sparse[name])
        return parameter

    def lend(self: Any, value: Tensor) -> None:
        """Compute with another tensor until the weight is set back: what torch.func.functional_call does."""
        lent = dict(self.__dict__.get("_lent", {}))
        if isinstance(value, SparseTensor) and isinstance(value._owner, stored.Owner) and value._owner.module is self:
            lent.pop(name, None)
        else:
            lent[name] = value
        self.__dict__["_lent"] = lent

    return property(read, lend, doc=f"The sparse weight {name!r}.")


@cache
def _sparse_class(dense: Any, names: tuple[tuple[str, bool], ...]) -> type[SparseModule]:
    members: dict[str, Any] = {name: _weight(name) for name, _ in names}
    computed = forward.for_layer(dense) if any(is_stored for _, is_stored in names) else None
    if computed is not None:
        members["forward"] = computed
    members |= {"_dense_class": dense, "__module__": dense.__module__, "__doc__": dense.__doc__}
    return type(f"Sparse{dense.__name__}", (SparseModule, dense), members)


def _rebuild(dense: Any, names: tuple[tuple[str, bool], ...]) -> SparseModule:
    """Make an empty module for pickle and copy to fill."""
    made = _sparse_class(dense, names)
    return made.__new__(made)


def dense_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module, or the one that it had before weights of it became sparse.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> dense_class(gs.sparsify_(torch.nn.Linear(4, 4), "50%"))
    <class 'torch.nn.modules.linear.Linear'>
    """
    return module._dense_class if isinstance(module, SparseModule) else type(module)


def rebase(module: nn.Module, dense: Any) -> None:
    """Let a module with sparse weights have another class below the sparse one."""
    names = tuple((name, held.is_stored) for name, held in held_by(module).items())
    module.__class__ = _sparse_class(dense, names)


def held_by(module: nn.Module) -> dict[str, Held]:
    """Return the sparse weights of one module, by name."""
    return module._sparse if isinstance(module, SparseModule) else {}


def part_of(module: nn.Module, key: str) -> tuple[str | None, str]:
    """Return the sparse weight that a parameter or buffer of a module belongs to, and what it is of it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = gs.sparsify_(torch.nn.Linear(8, 4), "75%", format=gs.CSR())
    >>> part_of(layer, "weight_values"), part_of(layer, "weight_crd1"), part_of(layer, "bias")
    (('weight', 'values'), ('weight', 'crd1'), (None, ''))
    """
    for name, held in held_by(module).items():
        if not held.is_stored and key == name and held.format is not None:
            return name, "values"
        if key.startswith(f"{name}_"):
            part = key.removeprefix(f"{name}_")
            parts = ["values", "format", *stored.array_names(held)] if held.is_stored else ["mask"]
            if part in parts:
                return name, part
    return None, ""


def _enter(module: nn.Module, name: str, format: Format | None, shape: torch.Size) -> Held:
    """Note how a weight is held; what was known of its gradient and its choice is kept."""
    weights, before = dict(held_by(module)), held_by(module).get(name)
    held = Held(format, shape) if before is None else replace(before, format=format, shape=shape, checked=None)
    _become(module, {**weights, name: held})
    return held


def _leave(module: nn.Module, name: str) -> None:
    """Forget a weight that is an ordinary one again."""
    _become(module, {n: h for n, h in held_by(module).items() if n != name})


def _become(module: nn.Module, weights: dict[str, Held]) -> None:
    """Give a module the class that goes with these sparse weights."""
    dense: Any = dense_class(module)
    module.__dict__.pop("_sparse", None)
    module.__dict__.pop("_together", None)  # it computes for itself: models/together.py
    module.__class__ = _sparse_class(dense, tuple((n, h.is_stored) for n, h in weights.items())) if weights else dense
    if weights:
        module.__dict__["_sparse"] = weights


def hold_masked(module: nn.Module, name: str, mask: Tensor) -> None:
    """Let a module hold a parameter that it has masked by this mask. (A stored one is released first.)"""
    parameter = module._parameters[name]
    assert parameter is not None
    buffer = module._buffers.get(f"{name}_mask") if name in held_by(module) else None
    if buffer is None:
        _refuse_clash(module, f"{name}_mask")
        module.register_buffer(f"{name}_mask", mask.to(parameter.device).contiguous().clone(), persistent=False)
    else:
        buffer.copy_(mask)
    _enter(module, name, Masked(), parameter.shape)
    getattr(module, name)  # which settles it


def hold_stored(module: nn.Module, name: str, structure: Structure) -> None:
    """Let a module hold the values of a weight, which its parameter has by now, with index arrays as buffers.

    A masked or stored weight is released first.
    """
    parameter = module._parameters[name]
    assert parameter is not None
    text = torch.tensor(list(repr(structure.format).encode()), dtype=torch.uint8, device=parameter.device)
    for part in ("values", *structure.arrays, "format"):
        _refuse_clash(module, f"{name}_{part}")
    _rename(module, name, f"{name}_values")
    for part, array in {**structure.arrays, "format": text}.items():
        module.register_buffer(f"{name}_{part}", array)
    held = _enter(module, name, structure.format, structure.shape)
    stored.trust(name, held, structure, parameter)
    _settle(module, name, held)


def watch_gradient(module: nn.Module, name: str, how: Output) -> None:
    """Let the gradient of a weight, dense or sparse, be made sparse."""
    held = held_by(module).get(name)
    if held is None:
        parameter = module._parameters[name]
        assert parameter is not None
        held = _enter(module, name, None, parameter.shape)
    else:
        move_out(module._parameters[f"{name}_values" if held.is_stored else name])  # its hooks are others now
    held.gradient = how
    _settle(module, name, held)


def release(module: nn.Module, name: str) -> None:
    """Let a module hold a plain parameter where it had a sparse weight: the trained values, whatever their shape."""
    held = held_by(module).get(name)
    if held is None:
        return
    parts = ["mask"] if not held.is_stored else [*stored.array_names(held), "format"]
    for part in parts:
        module._buffers.pop(f"{name}_{part}", None)
        module._non_persistent_buffers_set.discard(f"{name}_{part}")
    if held.is_stored:
        _rename(module, f"{name}_values", name)
    parameter = module._parameters[name]
    move_out(parameter)
    if type(parameter) is MaskedParameter:
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
    _leave(module, name)


def _rename(module: nn.Module, old: str, new: str) -> None:
    """Give a parameter another name, at the place that it has among the others."""
    renamed = [(new if key == old else key, value) for key, value in module._parameters.items()]
    module._parameters.clear()
    module._parameters.update(renamed)


def _refuse_clash(module: nn.Module, name: str) -> None:
    if name in module._parameters or name in module._buffers or hasattr(module, name):
        raise ValueError(
            f"{type(module).__name__} has an attribute {name!r} of its own, where gossamer would keep a part of a "
            "sparse weight: rename it"
        )
