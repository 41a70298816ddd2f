"""The owner of a parameter: its module, its mask, and how its gradient is treated."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.join import gather
from gossamer.core.tensor import SparseTensor
from gossamer.models.held import Held

#: Autograd's own ``.grad``, whatever a class of parameters makes of it. (By its other name: a compiled function would
#: read ``.grad`` by the class.)
GRAD: Any = torch.Tensor._grad


def _nothing() -> None:
    """Stand for a weak reference to nothing."""


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
        #: How often the parameter had been written when it was last clear outside the mask.
        self.written: int | None = None
        #: Has the parameter values at every position, for one step of an optimizer?
        self.whole = False
        #: Is an optimizer that leaves zeros as they are in the middle of a step?
        self.steps = False
        self.hooks: list[Any] = []
        #: The gradient that was cleared last, and how often it had been written then.
        self.clean: tuple[Any, int] = (_nothing, 0)
        #: The gradient that somebody else owns: it was assigned to ``.grad``.
        self.lent: Any = _nothing
        #: The masked parameters that an optimizer steps together with this one, by weak references; None: not known.
        self.together: list[Any] | None = None
        #: The structure of a stored weight that is dense for one optimizer step.
        self.closed: Any = None

    @property
    def held(self) -> Held:
        """What the module knows of the weight."""
        module: Any = self.module()
        return module._sparse[self.name]

    @property
    def open(self) -> bool:
        """Does a method of training update every position?"""
        module: Any = self.module()
        return module is not None and module._sparse[self.name].open

    def collect(self, parameter: Tensor, grad: Tensor) -> Tensor:
        """Collect the gradient at every position. Autograd calls this before it adds to ``.grad``."""
        if grad.layout != torch.strided:
            grad = grad.to_dense()
        self.held.collect(grad, first=GRAD.__get__(parameter) is None)
        return grad

    def masks(self, grad: Tensor) -> bool:
        """Is a gradient to be cleared outside the mask, and not clear yet?"""
        clean, version = self.clean
        if clean() is grad and version == grad._version:
            return False
        mask = self.mask
        if mask is None or self.module() is None or grad.is_meta or isinstance(grad, SparseTensor):
            return False
        return mask.shape == grad.shape and mask.device == grad.device and not self.held.whole

    def owns(self, grad: Tensor) -> bool:
        """May a gradient be cleared in place?"""
        return grad.layout == torch.strided and not grad.requires_grad and self.lent() is not grad

    def cleaned(self, grad: Tensor) -> None:
        """Note that a gradient is clear."""
        self.clean = weakref.ref(grad), grad._version

    def __reduce__(self) -> Any:
        # who pickles a parameter gets nothing of its module; a module that is pickled settles its parameters again
        return OrderedDict, ()

    def watch(self, parameter: Any) -> None:
        """Let autograd call where somebody wants the gradient at every position, once there is one."""
        held = self.held
        if self.watches or (held.collects_all and not parameter.requires_grad):
            return
        self.unwatch()
        if held.collects_all and parameter.shape == held.shape:
            known = weakref.ref(parameter)
            self.hooks.append(parameter.register_hook(lambda grad: self.collect(known(), grad)))  # type: ignore[arg-type]
        if held.gradient is not None:
            self.hooks.append(parameter.register_post_accumulate_grad_hook(sparsify_gradient))

    @property
    def watches(self) -> bool:
        """Does autograd call if and only if somebody wants it?"""
        return bool(self.hooks) == self.held.collects_all

    def unwatch(self) -> None:
        """Let autograd no longer call."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


def home_of(parameter: Tensor) -> Home | None:
    """Return where a parameter belongs; None for one that is of no sparse module."""
    home = parameter.__dict__.get("home")
    return home if isinstance(home, Home) else None


def move_out(parameter: Any) -> None:
    """Let a parameter forget its home: its gradient is an ordinary one again."""
    home = home_of(parameter)
    if home is not None:
        home.unwatch()
    parameter.__dict__.pop("home", None)


def version_of(tensor: Tensor) -> int:
    """Return the number of times a tensor was written; tensors of inference mode don't count.

    Examples
    --------
    >>> import torch
    >>> version_of(torch.zeros(2).add_(1))
    1
    """
    return -1 if tensor.is_inference() else tensor._version


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
