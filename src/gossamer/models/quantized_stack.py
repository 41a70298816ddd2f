"""One weight of quantized experts: its layout and sizes, and what summaries and reports ask about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.stack import Shape, decoded_one, decoded_stack
from gossamer.kernels.quantized.weight import Arrays
from gossamer.ops.explain import Explanation


class QuantizedStack(NamedTuple):
    """Layout, and experts, rows and columns.

    Examples
    --------
    >>> import torch
    >>> QuantizedStack(Layout("fp8", "all", 4), (8, 128, 64)).refusal(torch.device("cpu"))
    'there are kernels for a GPU, and this is a CPU'
    """

    layout: Layout
    shape: Shape

    def refusal(self, device: torch.device) -> str | None:
        """Return why there is no kernel for it on a device; None if there is one."""
        if device.type != "cuda":
            return f"there are kernels for a GPU, and this is a {device.type.upper()}"
        return self.layout.refusal(gpu.capability(device.index or 0))


def arrays_in(held: Mapping[str, Any], name: str) -> Arrays:
    """Return the arrays of a weight among buffers, or tensors of a state_dict.

    Examples
    --------
    >>> import torch
    >>> arrays_in({"up_proj_values": torch.ones(1), "up_proj_scale": torch.ones(2)}, "up_proj").scale
    tensor([1., 1.])
    """
    return Arrays(*(held.get(f"{name}_{part}") for part in Arrays._fields))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ExpertsWeight:
    """One weight of a module of quantized experts, as a quantized layer would answer for its own."""

    experts: Any
    name: str

    @property
    def layout(self) -> Layout:
        """How its arrays are arranged."""
        stack: QuantizedStack = self.experts.stacks[self.name]
        return stack.layout

    @property
    def shape(self) -> Shape:
        """Experts, outputs and inputs."""
        stack: QuantizedStack = self.experts.stacks[self.name]
        return stack.shape

    @property
    def weight(self) -> Tensor:
        """The dense weight; computed on access."""
        arrays = self.experts.arrays(self.name)
        return decoded_stack(arrays, self.layout, self.shape, self.experts.weights_dtype)

    def mask(self) -> Tensor:
        """Return where the weight is not 0."""
        return decoded_stack(self.experts.arrays(self.name), self.layout, self.shape) != 0

    @property
    def nnz(self) -> int:
        """Values that are stored."""
        given = self.experts.arrays(self.name), self.layout, self.shape
        return sum(int(decoded_one(*given, number).count_nonzero()) for number in range(self.shape[0]))

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return sum(array.nbytes for array in self.experts.arrays(self.name) if array is not None)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the weight before."""
        dtype: torch.dtype = self.experts.weights_dtype
        return torch.Size(self.shape).numel() * dtype.itemsize

    def explain(self, *args: Any) -> Explanation:
        """Return what computes the products, and why."""
        said: Explanation = self.experts.explain(*args)
        return said
