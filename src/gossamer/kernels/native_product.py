"""Products by native CPU kernels: what packed rows and blocks share.

Both families have the same operators, under their own prefix:

- ``<prefix>_linear(*arrays, values, x, bias, *sizes, activation)``, and ``<prefix>_forward`` without gradients,
- ``<prefix>_linear_t(*arrays, values, grad, *sizes)``,
- ``<prefix>_sample(*arrays, left, right, *sizes, *block)``, and ``<prefix>_sample_forward`` without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import Structure
from gossamer.kernels.product import Back, Case, Linear, Product, Sample, needed, plain, recorded, with_rows
from gossamer.kernels.rows.operators import NATIVE, STORED


def as_native(t: Tensor) -> Tensor:
    """Return a tensor in a type that the kernels read."""
    return t if t.dtype in NATIVE else t.float()


class NativeProduct(Product):
    """A matrix for native kernels: the arguments of their operators that stay the same from call to call."""

    prefix: ClassVar[str]
    #: grad @ W without torch's dispatcher.
    direct_back: ClassVar[Callable[..., Tensor]]
    _forward: ClassVar[Callable[..., Tensor]]
    #: What ``_forward`` calls: a microsecond less. Kept here since torch.compile can't read it from an operator.
    _forward_call: ClassVar[Callable[..., Tensor]]
    _back: ClassVar[Callable[..., Tensor]]
    _sample: ClassVar[Callable[..., Tensor]]
    _sampled: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls) -> None:
        ops = torch.ops.gossamer
        cls._forward = getattr(ops, f"{cls.prefix}_forward").default
        cls._back, cls._sample = (getattr(ops, f"{cls.prefix}_{name}").default for name in ("linear_t", "sample"))
        cls._forward_call = staticmethod(cls._forward._op)  # type: ignore[attr-defined]
        cls._sampled = getattr(ops, f"{cls.prefix}_sample_forward").default

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose = transpose
        self._bind(*self.arguments(structure))

    @staticmethod
    def arguments(structure: Structure) -> tuple[Any, ...]:
        """Return the arrays, the sizes and, where ``sample`` gets it, the block of a structure."""
        raise NotImplementedError

    @classmethod
    def of(cls, *arguments: tuple[Any, ...]) -> NativeProduct:
        """Return the product of arguments as the operators get them."""
        made = cls.__new__(cls)
        made._bind(*arguments)
        return made

    def _bind(self, arrays: tuple[Any, ...], sizes: tuple[int, ...], block: tuple[int, ...] = ()) -> None:
        self.arrays, self.sizes, self.block = arrays, sizes, block
        self.rows, self.cols = sizes[:2]
        self.call = _bound(type(self)._forward_call, arrays, sizes)

    @classmethod
    def ready(cls) -> bool:
        return native.load()

    @staticmethod
    def takes(case: Case) -> str | None:
        # nothing is built here: kernels that are not loaded yet are built when they first run
        if case.turned != case.transpose:
            return "the values are stored along the other dimension"
        if case.device != "cpu":
            return "its kernels run on a CPU"
        if case.dtype not in STORED:
            return "its kernels take float32, bfloat16 and float16"
        return "the native kernels could not be built" if native.loaded() is False else None

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        if not x.is_contiguous():
            x = with_rows(x)
        if values.dtype in NATIVE:
            return self.call(values, x, bias, activation)
        shift = None if bias is None else bias.float()
        return self.call(values.float(), x.float(), shift, activation).to(x.dtype)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        grad = with_rows(grad)
        function = type(self).direct_back if plain(grad) else type(self)._back
        return function(*self.arrays, as_native(values), as_native(grad), *self.sizes).to(grad.dtype)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        function = type(self)._sampled if plain(left) else type(self)._sample
        pair = as_native(with_rows(left)), as_native(with_rows(right))
        return function(*self.arrays, *pair, *self.sizes, *self.block).to(left.dtype)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        # torch.compile follows operators that it finds by name, not those that a class keeps
        function = getattr(torch.ops.gossamer, f"{self.prefix}_{'linear' if recorded() else 'forward'}")
        shift = None if bias is None else as_native(bias)
        out = function(*self.arrays, as_native(values), as_native(with_rows(x)), shift, *self.sizes, activation)
        return out.to(x.dtype)


def _bound(op: Callable[..., Tensor], arrays: tuple[Any, ...], sizes: tuple[int, ...]) -> Callable[..., Tensor]:
    """Return the forward operator with all arguments that stay the same."""

    def call(values: Tensor, x: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        return op(*arrays, values, x, bias, *sizes, activation)

    return call


def register_gradients(library: torch.library.Library, family: type[NativeProduct], arrays: int, block: int) -> None:
    """Give the operators of a family their gradients, for traces; given the numbers of their arrays and block sizes."""
    prefix = family.prefix

    def linear(*args: Any) -> Tensor:
        own, (values, x, bias), (*sizes, activation) = args[:arrays], args[arrays : arrays + 3], args[arrays + 3 :]
        if not needed(values, x, bias):
            return family._forward(*args)
        if activation:
            raise NotImplementedError("a fused activation has no gradient: apply it after the product")
        return Linear.apply(x, values, bias, family.of(own, tuple(sizes), tuple(values.shape[1:])))

    def linear_t(*args: Any) -> Tensor:
        own, (values, grad), sizes = args[:arrays], args[arrays : arrays + 2], args[arrays + 2 :]
        if needed(values, grad):
            return Back.apply(grad, values, family.of(own, sizes, tuple(values.shape[1:])))
        with torch._C._AutoDispatchBelowAutograd():
            return family._back(*args)

    def sample(*args: Any) -> Tensor:
        own, (left, right), rest = args[:arrays], args[arrays : arrays + 2], args[arrays + 2 :]
        if not needed(left, right):
            return family._sampled(*args)
        sizes, edges = rest[: len(rest) - block], rest[len(rest) - block :]
        return Sample.apply(left, right, family.of(own, sizes, edges))

    library.impl(f"{prefix}_linear", linear, "Autograd")
    library.impl(f"{prefix}_linear_t", linear_t, "Autograd")
    library.impl(f"{prefix}_sample", sample, "Autograd")
