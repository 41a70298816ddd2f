"""Masked weights: a dense parameter that knows its mask.

The parameter is an ordinary one to every optimizer, to DDP and to serialization. Outside of its mask it is zero, and it
stays zero: a hook of autograd clears its gradient there, so an optimizer has nothing to add. The mask itself is a
buffer of the module, ``weight_mask``; a :class:`Home` ties the two together.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch import Tensor, nn
from torch._utils import _rebuild_parameter

from gossamer.core.tensor import SparseTensor, gather
from gossamer.formats import Format, Masked, Structure
from gossamer.formats.values import cleared
from gossamer.models.held import Held


class Home:
    """Where a parameter of a sparse module belongs. Optimizers and autograd know parameters; this leads back.

    Parameters
    ----------
    module, name
        The module, and the name of the weight in it.
    mask
        The module's buffer, of a masked weight.
    """

    def __init__(self, module: nn.Module, name: str, mask: Tensor | None) -> None:
        self.module, self.name, self.mask = weakref.ref(module), name, mask
        self.version = 0 if mask is None else version_of(mask)
        self.hooks: list[Any] = []
        #: The structure of a stored weight that is dense for one optimizer step.
        self.closed: Any = None

    @property
    def held(self) -> Held:
        """What the module knows of the weight."""
        module: Any = self.module()
        return module._sparse[self.name]

    def gradient(self, parameter: Tensor, grad: Tensor) -> Tensor | None:
        """Collect a gradient if it is wanted at every position, and clear it outside of the mask.

        Autograd calls this before it adds to ``.grad``.
        """
        held = self.held
        if grad.layout != torch.strided:
            grad = grad.to_dense()
        if held.collects or held.gradient is not None:
            held.collect(grad, first=parameter.grad is None)
        return grad if held.whole or self.mask is None else cleared(grad, self.mask)

    def __reduce__(self) -> Any:
        # who pickles a parameter gets nothing of its module; a module that is pickled settles its parameters again
        return OrderedDict, ()

    def watch(self, parameter: Any) -> None:
        """Let autograd call, once the parameter needs a gradient."""
        if self.hooks or not parameter.requires_grad:
            return
        known = weakref.ref(parameter)
        if parameter.shape == self.held.shape:
            self.hooks.append(parameter.register_hook(lambda grad: self.gradient(known(), grad)))  # type: ignore[arg-type]
        if self.held.gradient is not None:
            self.hooks.append(parameter.register_post_accumulate_grad_hook(sparsify_gradient))


_DATA: Any = torch.Tensor.data


class MaskedParameter(nn.Parameter):
    """A dense parameter with a mask: zero where the mask is False, and kept so while it trains.

    Made by :func:`gossamer.sparsify_`. It answers what a :class:`gossamer.SparseTensor` answers, and is otherwise a
    plain tensor.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> weight = gs.sparsify_(torch.nn.Linear(8, 8), "75%").weight
    >>> weight
    MaskedParameter(shape=(8, 8), dtype=float32, sparsity=75.0 %)
    >>> weight.nnz, weight.format, int(weight.mask().sum())
    (16, Masked(), 16)
    """

    #: Set by the module that the parameter belongs to.
    home: Home | None = None
    #: How it is stored, as for a SparseTensor.
    format: Format = Masked()

    @property
    def data(self) -> Tensor:
        """The values, outside of autograd. What is set is cleared outside of the mask, with a warning."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        _DATA.__set__(self, value)
        mask = None if self.home is None else self.home.mask
        if mask is None or mask.device != value.device or mask.shape != value.shape or value.is_meta:
            return  # the module is being moved, and settles its weights when it is done
        if bool((value != 0).logical_and_(~mask).any()):
            warnings.warn(
                "a masked weight was given values outside of its mask, which were cleared: call gs.densify_ first "
                "to keep them (merging an adapter into a sparse weight does this)",
                stacklevel=2,
            )
            cleared(value, mask, inplace=True)

    def mask(self) -> Tensor:
        """Return a bool tensor, True where a value is kept; it is a copy."""
        return self.known_mask().clone()

    def known_mask(self) -> Tensor:
        """Return the mask itself, which is not to be written to."""
        known = None if self.home is None else self.home.mask
        return self.detach() != 0 if known is None else known

    @property
    def nnz(self) -> int:
        """Number of values that are kept."""
        return int(torch.count_nonzero(self.known_mask()))

    @property
    def density(self) -> float:
        """Kept values over all."""
        return self.nnz / max(self.numel(), 1)

    @property
    def sparsity(self) -> float:
        """1 - density."""
        return 1.0 - self.density

    def values(self) -> Tensor:
        """Return the parameter: a masked format stores every value."""
        return self

    def sparse(self) -> SparseTensor:
        """Return it as a SparseTensor of the same memory, outside of autograd."""
        structure = Structure(
            Masked(), self.shape, {f"mask{max(self.dim(), 1) - 1}": self.known_mask().view(-1)}, self.device
        )
        return SparseTensor(self.detach(), structure)

    def to_format(self, format: Format) -> Any:
        """Return the same values in another format, as a SparseTensor outside of autograd."""
        return self.sparse().to_format(format)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if self.is_meta:
            return f"MaskedParameter(shape={tuple(self.shape)}, dtype={str(self.dtype)[6:]}, device=meta)"
        share = f"{self.sparsity:.1%}".replace("%", " %")
        return f"MaskedParameter(shape={tuple(self.shape)}, dtype={str(self.dtype)[6:]}, sparsity={share})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # as a plain parameter, which any program can read; the module ties it to its mask again
        return _rebuild_parameter, (self.data, self.requires_grad, OrderedDict())


# torch runs its fast optimizers (foreach, fused) by default for these types only; DTensor adds itself in the same way
if MaskedParameter not in optimizers._foreach_supported_types:
    optimizers._foreach_supported_types.append(MaskedParameter)


def version_of(tensor: Tensor) -> int:
    """Return the number of times a tensor was written; tensors of inference mode don't count.

    Examples
    --------
    >>> import torch
    >>> version_of(torch.zeros(2).add_(1))
    1
    """
    return -1 if tensor.is_inference() else tensor._version


def settle(module: nn.Module, name: str, parameter: Any, mask: Tensor | None) -> None:
    """See that a parameter of a module knows its home, and is cleared by the mask that the module has now.

    Either may have been replaced (by FSDP, ``load_state_dict(assign=True)``, a copy) or written to (by an average of
    models, by DDP).
    """
    home = home_of(parameter)
    other = home is None or home.mask is not mask or home.module() is None
    if home is None or other or (mask is not None and home.module() is not module):
        _move_in(module, name, parameter, mask)
    elif mask is not None and home.version != version_of(mask):
        clear(parameter, mask)
        home.version = version_of(mask)
    elif not home.hooks:
        home.watch(parameter)


def is_settled(module: nn.Module, parameter: Tensor, mask: Tensor | None) -> bool:
    """Is a parameter masked by the mask that its module has, as it is now? (Every call of a layer asks.)"""
    home = parameter.__dict__.get("home")
    if type(home) is not Home or mask is None or home.mask is not mask or not home.hooks:
        return False
    return home.module() is module and home.version == version_of(mask)


def home_of(parameter: Tensor) -> Home | None:
    """Return where a parameter belongs; None for one that is of no sparse module."""
    home = parameter.__dict__.get("home")
    return home if isinstance(home, Home) else None


def _move_in(module: nn.Module, name: str, parameter: Any, mask: Tensor | None) -> None:
    if mask is not None and type(parameter) is nn.Parameter:
        parameter.__class__ = MaskedParameter
    elif not isinstance(parameter, nn.Parameter) or type(parameter) not in (nn.Parameter, MaskedParameter):
        return  # a sharded or transformed tensor: it is looked after elsewhere
    move_out(parameter)
    home = Home(module, name, mask)
    parameter.__dict__["home"] = home
    if mask is not None and not parameter.is_meta:
        clear(parameter, mask)
    home.watch(parameter)


def move_out(parameter: Any) -> None:
    """Let a parameter forget its home: its gradient is an ordinary one again."""
    home = home_of(parameter)
    parameter.__dict__.pop("home", None)
    for hook in home.hooks if home is not None else ():
        hook.remove()


def sparsify_gradient(parameter: Any) -> None:
    """Make the gradient of a weight sparse, as its module says; under DDP this waits for the optimizer's step."""
    held = parameter.home.held
    if held.ranks is None and held.collected is not None:
        sparse = held.gradient.apply(held.collected)
        parameter.grad = (
            sparse
            if parameter.shape == held.shape
            else gather(sparse, parameter.home.module().structure_of(parameter.home.name))
        )
        held.latest = sparse


@torch.no_grad()
def clear(parameter: Tensor, mask: Tensor) -> None:
    """Put zeros into a parameter, and into its gradient, where the mask is False."""
    cleared(parameter.data, mask, inplace=True)
    grad = parameter.grad
    if grad is not None and grad.layout == torch.strided and not isinstance(grad, SparseTensor):
        cleared(grad.data, mask, inplace=True)
