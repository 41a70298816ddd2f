"""What layers in eight bits share: the bytes of a weight, what they say about it, and how they are checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import native
from gossamer.kernels.int8.layout import Layout, as_rounded, dense_of, layout_of, pack_as
from gossamer.kernels.int8.unpack import check, mask_of
from gossamer.kernels.int8.weight import Range, aligned, parts, range_of, with_head_of
from gossamer.models.quantized_common import dtype_after
from gossamer.ops.explain import Explanation


class Int8Layer(nn.Module):
    """A layer whose weight and activations have eight bits, as ``gs.quantize_(model, "int8")`` makes them.

    The weight, dense or sparse, is stored as the bytes that the kernels read (:mod:`gossamer.kernels.int8`): those of a
    matrix [outputs, columns], of which a subclass says what it is.

    Parameters
    ----------
    packed
        The weight's bytes, :func:`gossamer.kernels.int8.layout.pack_as`.
    bias
        Or None.
    dtype
        Of the weight that it stands for: :meth:`as_dense` returns one of this type.
    """

    packed: Tensor
    bias: nn.Parameter | None
    operator = ""
    """What :func:`gossamer.explain` calls it."""

    def __init__(self, packed: Tensor, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.kernels = native.load()  # only once: a trace can't call it
        self.register_buffer("packed", aligned(packed))
        self.register_parameter("bias", bias)

    @property
    @abstractmethod
    def matrix_shape(self) -> tuple[int, int]:
        """Outputs and columns of the matrix that is stored."""

    @abstractmethod
    def from_matrix(self, matrix: Tensor) -> Tensor:
        """Return the weight, or the mask, whose matrix this is."""

    @abstractmethod
    def compute(self, packed: Tensor, x: Tensor) -> Tensor:
        """Return the layer's output with these bytes as the weight, by the kernels."""

    @abstractmethod
    def compute_dense(self, x: Tensor) -> Tensor:
        """Return the layer's output by a dense weight in floating point, where there are no kernels."""

    @abstractmethod
    def as_dense(self) -> nn.Module:
        """Return torch's layer with the same weight."""

    @property
    def layout(self) -> Layout:
        """How the bytes are arranged."""
        return layout_of(self.packed)

    @property
    def weight(self) -> Tensor:
        """The weight in float32, in the shape that torch's layer has; computed on access."""
        if torch.compiler.is_compiling():  # a trace doesn't see the bytes
            return self.from_matrix(torch.ops.gossamer.int8_dense(self.packed, *self.matrix_shape))
        return self.from_matrix(dense_of(self.packed.cpu())).to(self.packed.device)

    def mask(self) -> Tensor:
        """Return which positions the weight keeps; a kept value may be 0."""
        return self.from_matrix(mask_of(self.packed))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.matrix_shape

    def tokens(self, shape: tuple[int, ...]) -> int:
        """Return how many vectors are multiplied by the matrix, for an input of this shape."""
        return torch.Size(shape[:-1]).numel()

    @property
    def nnz(self) -> int:
        """Positions that the weight keeps."""
        return int(mask_of(self.packed).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.packed.nbytes

    @property
    def dense_bytes(self) -> int:
        """Bytes of the weight in float32."""
        return 4 * torch.Size(self.shape).numel()

    @property
    def range(self) -> Range | None:
        """The fixed range of activations; None where it is that of each token or image."""
        return range_of(self.packed)

    def repack(self, layout: Layout) -> None:
        """Convert the bytes to another layout."""
        self.packed = with_head_of(pack_as(*as_rounded(self.packed), layout), self.packed)

    def explain(self, x: Tensor) -> Explanation:
        """Return what computes the layer's output, and why, for :func:`gossamer.explain`."""
        each = "token" if self.operator == "linear" else "image"
        ranges = "a fixed range" if self.range else f"a range for each {each}"
        why = f"the weight is {self.layout}; activations are rounded to eight bits, with {ranges}"
        if self.kernels and self.packed.is_cpu:
            return Explanation(self.operator, (str(self.layout),), "native", "gossamer.kernels.int8", why)
        reason = native.why_not() if self.packed.is_cpu else "there are kernels for a CPU only"
        function = f"F.{self.operator}"
        return Explanation(self.operator, (str(self.layout),), "fallback", function, f"{why}; {reason}: made dense")

    def check(self) -> None:
        """Raise ValueError if the bytes, which may come from a file, are not those of such a weight."""
        self.check_bytes(self.packed)

    def check_bytes(self, packed: Tensor) -> None:
        """Raise ValueError if these bytes, which may come from a file, can't be the layer's weight."""
        packed = aligned(packed)
        check(packed)
        sizes = parts(packed).sizes
        if sizes.shape != self.shape:
            found, wanted = (" x ".join(map(str, shape)) for shape in (sizes.shape, self.shape))
            raise ValueError(f"the int8 weight is {found}, and that of the layer {wanted}")

    def align(self) -> None:
        """Let the bytes begin where the kernels can read them."""
        self.packed = aligned(self.packed)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.dtype = dtype_after(fn, self.dtype, self.packed.device)
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        given = state_dict.get(f"{prefix}packed")
        if isinstance(given, Tensor):  # another pattern or layout may have more bytes, or fewer
            if not given.is_meta:
                self.check_bytes(given)
            self.packed = torch.empty_like(given, device=self.packed.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.align()

    def sizes_text(self) -> str:
        """Return the sizes of the layer, as torch's ``repr`` shows them."""
        return ""

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        if self.packed.is_meta:
            return self.sizes_text()
        fixed = f", activations {self.range.scale:.3g} * (0..254 - {self.range.zero})" if self.range else ""
        return f"{self.sizes_text()}, {self.layout}{fixed}"
