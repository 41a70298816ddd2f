"""The description of a sparse weight that its module keeps, besides the tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gossamer.formats import Format, Masked, Structure

if TYPE_CHECKING:
    from gossamer.models.rules import Rule
    from gossamer.ops.sparsified import Output


class Checked(NamedTuple):
    """A structure that was found right, with the names of its buffers, and how often they had been written then.

    ``values`` is the name of its values, and ``shape`` the shape that they must have.
    """

    structure: Structure
    arrays: tuple[tuple[str, Tensor, int], ...]
    values: str
    shape: tuple[int, ...]


class Ready(NamedTuple):
    """What the last call of a layer found, so that the next need not look for it: its parameters, and their product.

    The first five are what ``native.direct("layer")`` reads, in this order.
    """

    values: Tensor
    bias: Tensor | None
    arrays: tuple[tuple[str, Tensor, int], ...]  # as Checked has them
    number: int
    rows: int
    version: int  # of the table of operators
    call: Callable[..., Tensor | None]


@dataclass
class Held:
    """How a weight is held, and what happens to it while it trains. It is copied and pickled with its module.

    Parameters
    ----------
    format
        ``Masked()``, or how it is stored; None for a dense weight whose gradient is made sparse.
    shape
        Of the weight as a dense tensor.
    gradient
        How its gradient is made sparse, if it is.
    rule
        How it is chosen again, if it is.
    """

    format: Format | None
    shape: torch.Size
    gradient: Output | None = None
    rule: Rule | None = None
    #: Is the gradient at every position collected, beside the masked one? Methods of training ask for it.
    collects: bool = field(default=False, compare=False)
    #: Does a method of training update every position?
    open: bool = field(default=False, compare=False)
    #: The gradient at every position, summed since ``.grad`` was None.
    collected: Tensor | None = field(default=None, repr=False, compare=False)
    #: The gradient as it was last made sparse.
    latest: Tensor | None = field(default=None, repr=False, compare=False)
    #: The ranks that train this model by DDP, if they do.
    ranks: Any = field(default=None, repr=False, compare=False)
    #: The structure of a stored weight when its arrays were last checked.
    checked: Checked | None = field(default=None, repr=False, compare=False)
    #: How the last call of a linear layer was computed, where that was by a kernel that can be called directly.
    ready: Ready | None = field(default=None, repr=False, compare=False)

    @property
    def is_stored(self) -> bool:
        """Is it held as values and index arrays?"""
        return self.format is not None and not isinstance(self.format, Masked)

    @property
    def whole(self) -> bool:
        """Does its next gradient count at every position?"""
        return self.open or self.gradient is not None or (self.rule is not None and self.rule.due)

    @property
    def collects_all(self) -> bool:
        """Is the gradient at every position wanted, by a method of training or to make it sparse?"""
        return self.collects or self.gradient is not None

    def collect(self, grad: Tensor, first: bool) -> None:
        """Add a part of the gradient, as backward gives it; ``first`` since the last ``zero_grad``."""
        grad = grad.detach()
        self.collected = grad.clone() if first or self.collected is None else self.collected.add_(grad)

    def __deepcopy__(self, memo: Any) -> Held:
        rule = None if self.rule is None else replace(self.rule)
        return Held(self.format, self.shape, self.gradient, rule)

    def __reduce__(self) -> Any:
        return Held, (self.format, self.shape, self.gradient, self.rule)
