"""What every family of product kernels offers, and the gradients that all of them share.

A :class:`Product` is one matrix W, ready to be multiplied: the arrays and sizes that stay the same from call to call.
A family subclasses it and says in ``takes`` which calls it can compute. Three functions are enough, since each is the
gradient of the others:

- ``forward``: act(x @ W.T + bias),
- ``back``: grad @ W,
- ``sample``: left.T @ right at the places of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import Format, Structure

#: Activations that kernels apply, by their code.
ACTIVATIONS: tuple[Callable[[Tensor], Tensor] | None, ...] = (None, F.relu, F.gelu, F.silu)
CODES = {None: 0, "relu": 1, "gelu": 2, "silu": 3}


class Case(NamedTuple):
    """What the choice of a family depends on: constants, which a trace can take as such."""

    format: type[Format]
    turned: bool  # are the columns what is stored first?
    dtype: torch.dtype
    device: str
    transpose: bool
    traced: bool


class Product:
    """One matrix W [rows, cols] for products by one family of kernels.

    Made of a structure and of ``transpose``: is W the transpose of the matrix that is stored?
    """

    #: The formats whose products it is asked for.
    formats: ClassVar[tuple[type[Format], ...]]
    #: Is x better feature-major in memory (tokens are columns) than token-major?
    feature_major: ClassVar[bool] = False
    #: Can it convolve images without writing their patches to memory, by ``convolve``?
    convolves: ClassVar[bool] = False
    #: A function (values, x, bias, number, rows, activation) that computes ``forward`` with less ado, or answers None;
    #: and the number and rows that it is given. None where a family has none.
    direct: tuple[Callable[..., Tensor | None], int, int] | None = None
    rows: int
    cols: int
    transpose: bool

    def __init__(self, structure: Structure, transpose: bool) -> None:
        raise NotImplementedError

    @classmethod
    def ready(cls) -> bool:
        """Build or load what the kernels need, and return whether they are there. Asked before the first product."""
        return True

    @staticmethod
    def takes(case: Case) -> str | None:
        """Return None if the family computes a product with this matrix, else the reason why not."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        """Return act(x @ W.T + bias) for x [..., cols], without gradients.

        ``feature_major`` asks for the order of the result in memory; None leaves it to the family.
        """
        raise NotImplementedError

    def operator(self, values: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        """Return a function (x, values, bias) that is ``forward`` for plain tensors like these, if there is one.

        x has at least two dimensions, ``cols`` features, and the type of the values. A layer calls it without asking
        again what computes the product.
        """
        return None

    def convolve(
        self, images: Tensor, values: Tensor, bias: Tensor | None, window: tuple[int, ...], activation: int = 0
    ) -> Tensor:
        """Return act(convolution of [images, channels, height, width] with W + bias), without gradients; in traces too.

        The columns of W are those of a weight [rows, channels, kernel height, kernel width]. ``window`` has its kernel,
        stride and dilation, each down and across, and the padding at the left, right, top and bottom.
        """
        raise NotImplementedError

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        """Return grad @ W for grad [..., rows], without gradients."""
        raise NotImplementedError

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left.T @ right, for left [..., rows] and right [..., cols], at the places of the values."""
        raise NotImplementedError

    def clean(self, values: Tensor) -> Tensor:
        """Return values with zeros in the padding, as ``sample`` gives them."""
        return values

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        """Return act(x @ W.T + bias) by torch operators that a trace can record, and that have gradients."""
        raise NotImplementedError


def matrix_of_tokens(x: Tensor) -> Tensor:
    """Return all dimensions but the last as one, even where that leaves nothing."""
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x.unsqueeze(0)


def by_tokens(function: Callable[..., Tensor], at: int) -> Callable[..., Tensor]:
    """Return a function of a matrix of tokens, argument number ``at``, as one that takes more dimensions.

    Examples
    --------
    >>> import torch
    >>> by_tokens(lambda x: x @ torch.ones(3, 5), 0)(torch.ones(2, 4, 3)).shape
    torch.Size([2, 4, 5])
    """

    def run(*arguments: Any) -> Tensor:
        x = arguments[at]
        if x.dim() <= 2:
            return function(*arguments)
        out = function(*arguments[:at], x.flatten(0, -2), *arguments[at + 1 :])
        return out.reshape(*x.shape[:-1], out.shape[-1])

    return run


def with_rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous and whose other dimensions collapse into one."""
    rows = x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1]
    return x if rows and x.shape[1] > 1 else x.contiguous()


def plain(tensor: Tensor) -> bool:
    """Is it an ordinary tensor outside any trace, for which a kernel can be called without torch's dispatcher?"""
    ordinary = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter
    return ordinary and not torch.compiler.is_compiling() and not torch._C._len_torch_dispatch_stack()


def recorded() -> bool:
    """May a trace record gradients here? (One that is exported has none.)"""
    return torch.is_grad_enabled() and not torch.compiler.is_exporting()


def needed(*tensors: Tensor | None) -> bool:
    """Is a gradient of one of these to be recorded?"""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def activated(x: Tensor, activation: int) -> Tensor:
    """Apply an activation by its code."""
    function = ACTIVATIONS[activation]
    return x if function is None else function(x)


# -- gradients


#: What those are told who transform a call with a sparse weight by torch.func.
TRANSFORMED = (
    "torch.func transforms (vmap, grad, jvp ...) don't follow a SparseTensor that requires a gradient: give them "
    "t.detach().to_dense(), or a module with a sparse weight"
)


def lean(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return Function.apply without what it does for torch.func (2 us), whose transforms it refuses in words."""
    direct: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def apply(*args: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(TRANSFORMED)
        return direct(*args)

    return apply


class Linear(torch.autograd.Function):
    """x @ W.T + bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, kernel: Product, feature_major: bool | None = None
    ) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.kernel = kernel
        return kernel.forward(x, values, bias, 0, feature_major)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        needs, kernel = ctx.needs_input_grad, ctx.kernel
        grad_x = back(grad, values, kernel) if needs[0] else None
        grad_values = sample(grad, x, kernel) if needs[1] else None
        return grad_x, grad_values, matrix_of_tokens(grad).sum(0) if needs[2] else None, None, None


class Back(torch.autograd.Function):
    """grad @ W."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, values: Tensor, kernel: Product) -> Tensor:
        ctx.save_for_backward(grad, values)
        ctx.kernel = kernel
        return kernel.back(grad, values)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> tuple[Tensor | None, ...]:
        grad, values = ctx.saved_tensors
        needs, kernel = ctx.needs_input_grad, ctx.kernel
        return (
            linear(x, values, None, kernel) if needs[0] else None,
            sample(grad, x, kernel) if needs[1] else None,
            None,
        )


class Sample(torch.autograd.Function):
    """left.T @ right at the places of the values."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, kernel: Product) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.kernel = kernel
        return kernel.sample(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        needs, kernel = ctx.needs_input_grad, ctx.kernel
        values = kernel.clean(grad)  # a place without an entry has no gradient
        return (
            linear(right, values, None, kernel) if needs[0] else None,
            back(left, values, kernel) if needs[1] else None,
            None,
        )


record = lean(Linear)


def linear(x: Tensor, values: Tensor, bias: Tensor | None, kernel: Product) -> Tensor:
    """Return x @ W.T + bias, with gradients where they are recorded."""
    return Linear.apply(x, values, bias, kernel) if torch.is_grad_enabled() else kernel.forward(x, values, bias)


def back(grad: Tensor, values: Tensor, kernel: Product) -> Tensor:
    """Return grad @ W, with gradients where they are recorded."""
    return Back.apply(grad, values, kernel) if torch.is_grad_enabled() else kernel.back(grad, values)


def sample(left: Tensor, right: Tensor, kernel: Product) -> Tensor:
    """Return left.T @ right at the places of the values, with gradients where they are recorded."""
    return Sample.apply(left, right, kernel) if torch.is_grad_enabled() else kernel.sample(left, right)
