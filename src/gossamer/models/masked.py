"""Masked weights: a dense parameter with a mask.

For optimizers, DDP and serialization it is an ordinary parameter. It is zero outside its mask and stays zero, because
its gradient is cleared there before it is read, so an optimizer has nothing to add. The mask itself is a buffer of the
module, ``weight_mask``; a :class:`Home` connects the two.

Backward writes the gradient at every position, without a hook: a Python hook costs 20 to 100 us per weight. The
gradient is cleared outside the mask when ``.grad`` is next read; before an optimizer step, this is done for all
weights of a model in one call.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch import Tensor, nn
from torch._utils import _rebuild_parameter

from gossamer.core.tensor import SparseTensor
from gossamer.core.untraced import compiling, skip, untraced
from gossamer.formats import Format, Masked, Structure
from gossamer.formats.values import cleared
from gossamer.kernels.clearing import clear_all
from gossamer.models.home import GRAD, Home, home_of, move_out, version_of

_DATA: Any = torch.Tensor.data


class MaskedParameter(nn.Parameter):
    """A dense parameter with a mask. It is zero where the mask is False, and stays zero there in training.

    Created by :func:`gossamer.sparsify_`. It has the attributes of a :class:`gossamer.SparseTensor`, and is otherwise a
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
        """The detached values. Values that you assign outside the mask are set to zero, with a warning."""
        home = self.home
        if home is not None and not compiling():
            home.written = None  # who has them may write to them, and torch doesn't count that
        return _DATA.__get__(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        _DATA.__set__(self, value)
        mask = None if self.home is None else self.home.mask
        if mask is None or mask.device != value.device or mask.shape != value.shape or value.is_meta:
            return  # the module is being moved, and settles its weights when it is done
        if bool((value != 0).logical_and_(~mask).any()):
            warnings.warn(
                "values outside the mask of a masked weight were set to zero: call gs.densify_ first "
                "to keep them (merging an adapter into a sparse weight does this)",
                stacklevel=2,
            )
            cleared(value, mask, inplace=True)

    @property
    def grad(self) -> Tensor | None:
        """The gradient: zero outside the mask, unless a training method needs it at every position."""
        grad, home = GRAD.__get__(self), self.home
        if grad is None or home is None:
            return grad
        if not compiling():  # optimizers read it four times a step, so what most often is the answer comes first
            known, version = home.clean
            if (known() is grad and version == grad._version) or home.open:
                return grad
        return clear_gradient(self, home, grad)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and self.home is not None:
            self.home.lent = weakref.ref(value)
        GRAD.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        GRAD.__delete__(self)

    def mask(self) -> Tensor:
        """Return a copy of the mask: a bool tensor, True where a value is kept."""
        return self.known_mask().clone()

    def known_mask(self) -> Tensor:
        """Return the mask itself; don't write to it."""
        known = None if self.home is None else self.home.mask
        return self.detach() != 0 if known is None else known

    @property
    def nnz(self) -> int:
        """Number of values that are kept."""
        return int(torch.count_nonzero(self.known_mask()))

    @property
    def density(self) -> float:
        """Number of kept values divided by the number of elements."""
        return self.nnz / max(self.numel(), 1)

    @property
    def sparsity(self) -> float:
        """1 - density."""
        return 1.0 - self.density

    def values(self) -> Tensor:
        """Return the parameter: a masked format stores every value."""
        return self

    def sparse(self) -> SparseTensor:
        """Return it as a detached SparseTensor that shares its memory."""
        if self.home is not None:
            clear_writes(self, self.home)
        structure = Structure(
            Masked(), self.shape, {f"mask{max(self.dim(), 1) - 1}": self.known_mask().view(-1)}, self.device
        )
        return SparseTensor(self.detach(), structure)

    def to_format(self, format: Format) -> Any:
        """Return the same values in another format, as a detached SparseTensor."""
        return self.sparse().to_format(format)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if self.is_meta:
            return f"MaskedParameter(shape={tuple(self.shape)}, dtype={str(self.dtype)[6:]}, device=meta)"
        share = f"{self.sparsity:.1%}".replace("%", " %")
        return f"MaskedParameter(shape={tuple(self.shape)}, dtype={str(self.dtype)[6:]}, sparsity={share})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # as a plain parameter, which any program can read; the module ties it to its mask again
        return _rebuild_parameter, (self.data, self.requires_grad, OrderedDict())


skip(MaskedParameter.__dict__["grad"].fget)  # it asks the compiler, which can't be traced
# torch runs its fast optimizers (foreach, fused) by default for these types only; DTensor adds itself in the same way
if MaskedParameter not in optimizers._foreach_supported_types:
    optimizers._foreach_supported_types.append(MaskedParameter)


def exchange_memory(parameter: Tensor, values: Tensor, whole: bool = False) -> Tensor:
    """Let a parameter have other memory of the same shape; return the values that it had.

    ``whole``: values at every position, which are not to be cleared.

    Examples
    --------
    >>> import torch
    >>> parameter = torch.nn.Parameter(torch.zeros(2))
    >>> exchange_memory(parameter, torch.ones(2)), parameter.tolist()
    (tensor([0., 0.]), [1.0, 1.0])
    """
    before: Tensor = _DATA.__get__(parameter)
    _DATA.__set__(parameter, values)
    home = home_of(parameter)
    if home is not None:
        home.whole = whole
    return before


def settle(module: nn.Module, name: str, parameter: Any, mask: Tensor | None) -> None:
    """See that a parameter of a module knows its home, and is cleared by the mask that the module has now.

    Either may have been replaced (by FSDP, ``load_state_dict(assign=True)``, a copy) or written to (by an average of
    models, by DDP).
    """
    home = home_of(parameter)
    other = home is None or home.mask is not mask or home.module() is None
    if home is None or other or (mask is not None and home.module() is not module):
        _move_in(module, name, parameter, mask)
        return
    if mask is not None and home.version != version_of(mask):
        clear(parameter, mask)
    clear_writes(parameter, home)
    home.watch(parameter)


def is_settled(module: nn.Module, parameter: Tensor, mask: Tensor | None) -> bool:
    """Is a parameter masked by the mask that its module has, as it is now? (Every call of a layer asks.)"""
    home = parameter.__dict__.get("home")
    if type(home) is not Home or mask is None or home.mask is not mask or home.module() is not module:
        return False
    return is_clear(home, parameter, mask) and home.watches


def is_clear(home: Home, parameter: Tensor, mask: Tensor) -> bool:
    """Has nobody written to a parameter or its mask since it was cleared? (nn.init and users do.)"""
    if home.whole or home.steps:
        return True
    if parameter.is_inference() or mask.is_inference():
        return home.version == version_of(mask) and home.written == version_of(parameter)
    return home.version == mask._version and home.written == parameter._version


def clear_writes(parameter: Tensor, home: Home) -> None:
    """Clear a parameter outside its mask if somebody has written to it."""
    mask = home.mask
    fits = mask is not None and mask.shape == parameter.shape and mask.device == parameter.device
    if fits and not parameter.is_meta and not is_clear(home, parameter, mask):  # type: ignore[arg-type]
        _clear_values(parameter, home, mask)  # type: ignore[arg-type]


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


@torch.no_grad()
def _clear_values(parameter: Tensor, home: Home | None, mask: Tensor) -> None:
    cleared(_DATA.__get__(parameter), mask, inplace=True)
    if home is not None:
        home.version, home.written = version_of(mask), version_of(parameter)


@torch.no_grad()
def clear(parameter: Tensor, mask: Tensor) -> None:
    """Put zeros into a parameter, and into its gradient, where the mask is False."""
    grad, home = GRAD.__get__(parameter), home_of(parameter)
    _clear_values(parameter, home, mask)
    if grad is None or grad.layout != torch.strided or isinstance(grad, SparseTensor):
        return
    if home is None or home.owns(grad):
        cleared(grad.data, mask, inplace=True)
    else:  # somebody else's: it is left as it is, and cleared in a copy
        GRAD.__set__(parameter, cleared(grad.detach(), mask))


@untraced
def clear_gradient(parameter: Any, home: Home, grad: Tensor) -> Tensor:
    """Clear a gradient outside the mask if needed, and return it; in place if nothing else refers to it.

    With it those of the weights that an optimizer has stepped together, because code that reads one (to clip their
    norm, say) reads all. Not during backward, when DDP may be reducing them.
    """
    if not home.masks(grad):
        return grad
    if not home.owns(grad):
        return _clear_copy(parameter, home, grad)
    others = (home.together or ()) if torch._C._current_graph_task_id() == -1 else ()
    known = [found for one in others if (found := one()) is not None and found is not parameter]
    homes = [(one, other) for one in known if (other := home_of(one)) is not None and other.mask is not None]
    clear_gradients([(parameter, home), *homes])
    return GRAD.__get__(parameter)


def _clear_copy(parameter: Any, home: Home, grad: Tensor) -> Tensor:
    """Give a parameter a cleared copy of its gradient, which somebody else may have, or which has a graph."""
    grad = cleared(grad if grad.layout == torch.strided else grad.to_dense(), home.mask)  # type: ignore[arg-type]
    GRAD.__set__(parameter, grad)
    home.cleaned(grad)
    return grad


@torch.no_grad()
def clear_gradients(parameters: Iterable[tuple[Any, Home]]) -> None:
    """Clear the gradients of many weights, in one call where that is possible."""
    together: list[tuple[Home, Tensor]] = []
    for parameter, home in parameters:
        grad = GRAD.__get__(parameter)
        if grad is None or not home.masks(grad):
            continue
        if home.owns(grad):
            together.append((home, grad))
        else:
            _clear_copy(parameter, home, grad)
    clear_all([grad for _, grad in together], [home.mask for home, _ in together])  # type: ignore[misc]
    for home, grad in together:
        home.cleaned(grad)
