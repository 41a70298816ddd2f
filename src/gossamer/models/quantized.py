"""Linear layers in FP8, INT8 or INT4 for a GPU, dense, 2:4, V:N:M or a bitmap; on a CPU they compute the same, slowly.

A weight has a scale for each row (int4: for each row and 16 groups of columns), activations in 8 bits one for each
token, both from the largest magnitude. So nothing is beyond the range of the type, and nothing has to be calibrated.
What is small beside the largest of its row or token loses digits: e4m3 keeps 4 binary digits down to 1/28672 of the
largest, and rounds what is below 1/458752 of it to zero. A token that is not finite gives a row of NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import gpu
from gossamer.kernels.bitmap.plan import TOKENS
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.linear import quantized_linear
from gossamer.kernels.quantized.weight import Arrays, check, decoded, dense_values, packed_as
from gossamer.models.quantized_common import check_tokens, dense_layer, dtype_after, is_transformed, linear_like
from gossamer.ops.explain import Explanation

PARTS = ("values", "scale", "shared", "meta")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _FLOATS}


class QuantizedLinear(nn.Module):
    """x @ weight.T + bias with a weight of 8 or 4 bits, and activations of 8 bits unless only the weight is quantized.

    Made by ``gs.quantize_(model, "fp8")``, ``"int4"``, and ``"int8"`` on a GPU. It is for inference: gradients go
    through it to ``x`` and the bias as if nothing were rounded; the weight has none.

    Parameters
    ----------
    arrays
        The weight, as :func:`gossamer.kernels.quantized.weight.quantized` makes it.
    layout
        The layout of the arrays.
    bias
        Or None.
    shape
        Outputs and inputs.
    dtype
        Type of the weight before it was quantized; :meth:`as_dense` uses it again.
    inputs_first
        Whether the layer was a Conv1D of transformers.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "2:4")
    >>> gs.quantize_(model, "fp8")[0]
    QuantizedLinear(in_features=64, out_features=32, bias=True, fp8 2:4)
    >>> model(torch.randn(5, 64)).shape
    torch.Size([5, 32])
    """

    values: Tensor
    scale: Tensor
    shared: Tensor | None
    meta: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        arrays: Arrays,
        layout: Layout,
        bias: nn.Parameter | None,
        shape: tuple[int, int],
        dtype: torch.dtype,
        inputs_first: bool = False,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.inputs_first = inputs_first
        self.register_parameter("bias", bias)
        self._group: tuple[Any, int] | None = None  # gossamer.models.group.Group, and the number of this layer in it
        self._hold(arrays, layout, dtype)

    def _hold(self, arrays: Arrays, layout: Layout, dtype: torch.dtype) -> None:
        self.layout = layout
        for name, array in zip(PARTS, arrays, strict=True):
            self.register_buffer(name, array)
        self._note(dtype, arrays.values.device)

    def _note(self, dtype: torch.dtype, device: torch.device) -> None:
        """Note the type of the weight, also for a file."""
        self.dtype = dtype
        text = list(f"{self.layout}, {str(dtype).removeprefix('torch.')}".encode())
        self.register_buffer("format", torch.tensor(text, dtype=torch.uint8, device=device))

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.out_features, self.in_features

    @property
    def arrays(self) -> Arrays:
        """The weight in its layout; a copy if the layer is one of a group."""
        if self._group is not None:
            group, number = self._group
            return group.part(number)
        held: Any = self._buffers
        return Arrays(held["values"], held["scale"], held["shared"], held["meta"])

    @property
    def device(self) -> torch.device:
        """Where the weight is."""
        held: Any = self._buffers
        return held["format"].device

    def join(self, group: Any, number: int) -> None:
        """Leave the weight to a group, which has it as number ``number`` of several: :func:`gossamer.models.group_`."""
        for name in PARTS:
            self._buffers[name] = None
        self._group = group, number

    def ungroup(self) -> None:
        """Hold the weight itself again."""
        if self._group is not None:
            arrays, self._group = self.arrays, None
            self._hold(arrays, self.layout, self.dtype)

    @property
    def weight(self) -> Tensor:
        """The weight as a dense tensor, [outputs, inputs]; computed on access."""
        return decoded(self.arrays, self.layout, self.shape).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the type of ``x``."""
        check_tokens(x, self.in_features)
        if is_transformed(x) or (torch.is_grad_enabled() and x.requires_grad):
            return linear_like(x, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return self._product(x)
        with torch.no_grad():
            return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if self._group is not None:
            group, number = self._group
            return group.output(number, x)
        shape = (self.out_features, self.in_features)
        return quantized_linear(x, self.arrays, self.layout, shape, self._parameters["bias"])

    def mask(self) -> Tensor:
        """Return where the weight is not 0."""
        return decoded(self.arrays, self.layout, self.shape) != 0

    @property
    def nnz(self) -> int:
        """Values that are stored: of a dense layout, all."""
        return self.out_features * self.in_features if self.layout.dense else int(self.mask().sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return sum(array.nbytes for array in self.arrays if array is not None)

    @property
    def dense_bytes(self) -> int:
        """Bytes of the weight before."""
        return self.out_features * self.in_features * self.dtype.itemsize

    def repack(self, layout: Layout) -> None:
        """Convert the weight to another layout; int4 has only one."""
        self.ungroup()
        if layout != self.layout:
            small = dense_values(self.arrays, self.layout, self.shape)
            self._hold(packed_as(small, self.arrays.scale, layout), layout, self.dtype)

    def as_dense(self) -> nn.Module:
        """Return a dense layer with the same weight: a Linear, or a Conv1D if it was one."""
        return dense_layer(self.weight, self.bias, self.inputs_first).train(self.training)

    def explain(self, x: Tensor) -> Explanation:
        """Return what computes the layer's output, and why, for :func:`gossamer.explain`."""
        activations = "activations as they are" if self.layout.weights_only else "activations quantized token by token"
        why, device = f"the weight is {self.layout}; {activations}", self.device
        name = "vnm_weight_only" if self.layout.weights_only else "vnm_8bit"
        if self.layout.bitmap:
            few = x.numel() <= TOKENS * self.in_features
            name = "bitmap_8bit" if few else "torch._scaled_mm"
            why = why if few else f"{why}; more than {TOKENS} tokens: made dense in FP8 first"
        elif self.layout.dense:
            name = "torch._int_mm" if self.layout.numbers == "int8" else "torch._scaled_mm"
        reason = None if device.type == "cuda" else f"there are kernels for a GPU, and this is a {device.type.upper()}"
        reason = reason or self.layout.refusal(gpu.capability(device.index or 0))
        if reason is None:
            return Explanation("linear", (str(self.layout),), "native", name, why)
        return Explanation("linear", (str(self.layout),), "fallback", "torch.matmul", f"{why}; {reason}: made dense")

    def check(self) -> None:
        """Raise ValueError if the arrays, which may come from a file, are not those of such a weight."""
        check(self.arrays, self.layout, self.shape)

    # -- where torch moves, saves and loads modules

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        dtype = dtype_after(fn, self.dtype, self.device)
        own = {id(array) for array in self._buffers.values() if array is not None}
        if self._group is not None:
            self._group[0].move(fn)
        super()._apply(lambda tensor: in_type(fn, tensor) if id(tensor) in own else fn(tensor), recurse)
        if dtype is not self.dtype:
            self._note(dtype, self.device)
        self.suit_device()
        return self

    def settle(self) -> None:
        """Keep the type that the layer has in its model after arrays were loaded, whatever it was in their file."""
        self._note(self.dtype, self.device)
        self.suit_device()

    def suit_device(self) -> None:
        """Let it be dense where the GPU that it is on has no kernel for its sparse layout."""
        if self.device.type != "cuda" or self.layout.dense or self.layout.numbers == "int4":
            return
        if self.layout.refusal(gpu.capability(self.device.index or 0)) is not None:
            self.repack(Layout(self.layout.numbers))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._group is not None:
            arrays = {f"{prefix}{name}": array for name, array in zip(PARTS, self.arrays, strict=True)}
            destination.update({name: array for name, array in arrays.items() if array is not None})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.ungroup()
        if f"{prefix}format" in state_dict:  # another layout has other arrays
            layout, given_dtype = read_format(state_dict[f"{prefix}format"])
            if layout.m == 4 and f"{prefix}values" in state_dict:  # accelerate leaves out empty arrays but the first
                empty_one = torch.empty(0, dtype=torch.uint8, device=state_dict[f"{prefix}values"].device)
                state_dict = {f"{prefix}shared": empty_one, **state_dict}
            given = Arrays(*(state_dict.get(f"{prefix}{name}") for name in PARTS))
            if given.values is not None and given.scale is not None and not given.values.is_meta:
                check(given, layout, self.shape)
                empty = (None if array is None else torch.empty_like(array, device=self.device) for array in given)
                dtype = self.dtype
                self._hold(Arrays(*empty), layout, given_dtype)  # type: ignore[arg-type]
                self.dtype = dtype
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.settle()

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, bias={self.bias is not None}, {self.layout}"


def in_type(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return fn(tensor), on its device but of the type that it has: ``model.half()`` doesn't touch quantized numbers.

    Examples
    --------
    >>> import torch
    >>> in_type(torch.Tensor.half, torch.ones(1)).dtype
    torch.float32
    """
    out = fn(tensor)
    return out if out.dtype is tensor.dtype else tensor.to(out.device)


def read_format(text: Tensor) -> tuple[Layout, torch.dtype]:
    """Return the layout and the type that the buffer ``format`` of a layer names; ValueError if it is none.

    Examples
    --------
    >>> import torch
    >>> read_format(torch.tensor(list(b"fp8 2:4, bfloat16"), dtype=torch.uint8))
    (Layout(numbers='fp8', v='all', m=4, weights_only=False, bitmap=False), torch.bfloat16)
    """
    if text.dtype is not torch.uint8 or text.dim() != 1 or text.numel() > 100:
        raise ValueError("the format of a quantized layer is a short text in bytes")
    layout, _, dtype = bytes(text.tolist()).decode("ascii", "replace").partition(", ")
    if dtype not in _DTYPES:
        raise ValueError(f"a quantized layer was {', '.join(_DTYPES)} before, not {dtype[:50]!r}")
    return Layout.read(layout), _DTYPES[dtype]


def empty_layer(layer: Any, text: Tensor, parts: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> QuantizedLinear:
    """Return a layer without data in place of another, to be filled from a file.

    Parameters
    ----------
    layer
        A Linear, a Conv1D, or a quantized one.
    text
        The buffer ``format`` of the file.
    parts
        The types and shapes of its arrays.
    """
    layout, dtype = read_format(text)
    held = next((t for t in (*layer.parameters(), *layer.buffers())), None)
    device = torch.device("meta") if held is None else held.device
    arrays = (torch.empty(parts[n][1], dtype=parts[n][0], device=device) if n in parts else None for n in PARTS)
    turned = getattr(layer, "inputs_first", hasattr(layer, "nf"))  # a Conv1D has nf outputs
    shape = (layer.nf, layer.nx) if hasattr(layer, "nf") else (layer.out_features, layer.in_features)
    made = QuantizedLinear(Arrays(*arrays), layout, layer.bias, shape, dtype, turned)  # type: ignore[arg-type]
    made.dtype = layer.dtype if hasattr(layer, "dtype") else layer.weight.dtype
    return made.train(layer.training)
