"""Linear layers in eight bits: int8 weights, and activations that are rounded to eight bits token by token.

A weight, dense or sparse, is an int8 value times the scale of its row. It is stored as the bytes that the kernels read
(:mod:`gossamer.kernels.int8`). An activation is one of 255 levels between the smallest and the largest value of its
token, or of all calibration inputs of the layer. Sums are exact.

The error is bounded: with weights w, their scales s and the scale t of a token x, output r changes by at most
``s[r] / 2 * sum(|x|) + t / 2 * sum(|w[r]|) + n * s[r] * t / 4``, with sums over the n columns that row r keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import native
from gossamer.kernels.int8.layout import Layout, as_rounded, dense_of, layout_of, pack_as, usual
from gossamer.kernels.int8.linear import int8_linear
from gossamer.kernels.int8.unpack import check, mask_of
from gossamer.kernels.int8.weight import Range, aligned, parts, range_of, rounded, with_range
from gossamer.models.modules import dense_class
from gossamer.models.names import Where, chosen, inputs_first
from gossamer.models.observe import observe
from gossamer.models.surgery import put, put_all
from gossamer.models.weights import Weight, all_weights
from gossamer.ops.explain import Explanation
from gossamer.ops.ready import transformed

_records, _is_traced = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling


class DynamicInt8Linear(nn.Module):
    """x @ weight.T + bias with weights and activations in eight bits.

    Made by ``gs.quantize_(model, "int8")``. It is for inference: gradients go through it to ``x`` and the bias as if
    nothing were rounded; the weight has none.

    Parameters
    ----------
    packed
        The weight's bytes, :func:`gossamer.kernels.int8.layout.pack_as`.
    bias
        Or None.
    shape
        Outputs and inputs.
    inputs_first
        Whether the layer was a Conv1D of transformers; :meth:`as_dense` then returns one.
    dtype
        Type of the weight before it was quantized; :meth:`as_dense` uses it again.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "int8")
    >>> model[0]
    DynamicInt8Linear(in_features=64, out_features=32, bias=True, int8 dense)
    >>> model(torch.randn(5, 64)).shape
    torch.Size([5, 32])
    """

    packed: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        packed: Tensor,
        bias: nn.Parameter | None,
        shape: tuple[int, int],
        inputs_first: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = shape
        self.inputs_first, self.dtype = inputs_first, dtype
        self.kernels = native.load()  # only once: a trace can't call it
        self.register_buffer("packed", aligned(packed))
        self.register_parameter("bias", bias)

    @property
    def layout(self) -> Layout:
        """How the bytes are arranged."""
        return layout_of(self.packed)

    @property
    def weight(self) -> Tensor:
        """The weight in float32, [outputs, inputs]; computed on access."""
        if torch.compiler.is_compiling():  # a trace doesn't see the bytes
            return torch.ops.gossamer.int8_dense(self.packed, self.out_features, self.in_features)
        return dense_of(self.packed.cpu()).to(self.packed.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the type of ``x``."""
        packed: Any = self._buffers["packed"]  # a lookup by attribute takes half a microsecond longer
        bias = self._parameters["bias"]
        if not _is_traced() and not _records():  # nothing to trace or to record
            out = native.direct("int8")(packed, x, bias, self.out_features, 0)
            if out is not None:
                return out
        check_tokens(x, self.in_features)
        if self.kernels and packed.is_cpu and not is_transformed(x):
            return int8_linear(x, packed, self.out_features, bias)
        return linear_like(x, self.weight, self.bias)

    def explain(self, x: Tensor) -> Explanation:
        """Return what computes the layer's output, and why, for :func:`gossamer.explain`."""
        ranges = "a fixed range" if self.range else "a range for each token"
        why = f"the weight is {self.layout}; activations are rounded to eight bits, with {ranges}"
        if self.kernels and self.packed.is_cpu:
            return Explanation("linear", (str(self.layout),), "native", "gossamer.kernels.int8", why)
        reason = native.why_not() if self.packed.is_cpu else "there are kernels for a CPU only"
        return Explanation("linear", (str(self.layout),), "fallback", "F.linear", f"{why}; {reason}: made dense")

    def mask(self) -> Tensor:
        """Return which positions the weight keeps; a kept value may be 0."""
        return mask_of(self.packed)

    @property
    def nnz(self) -> int:
        """Positions that the weight keeps."""
        return int(self.mask().sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.packed.nbytes

    @property
    def dense_bytes(self) -> int:
        """Bytes of the weight in float32."""
        return 4 * self.out_features * self.in_features

    def repack(self, layout: Layout) -> None:
        """Convert the bytes to another layout."""
        self.packed = with_range(pack_as(*as_rounded(self.packed), layout), range_of(self.packed))

    @property
    def range(self) -> Range | None:
        """The fixed range of activations; None where each token has its own."""
        return range_of(self.packed)

    def as_dense(self) -> nn.Module:
        """Return a dense layer with the same weight: a Linear, or a Conv1D if it was one."""
        return dense_layer(self.weight.to(self.dtype), self.bias, self.inputs_first).train(self.training)

    def check(self) -> None:
        """Raise ValueError if the bytes, which may come from a file, are not those of such a weight."""
        check(self.packed)
        sizes = parts(self.packed).sizes
        if (sizes.rows, sizes.cols) != (self.out_features, self.in_features):
            wanted = f"{self.out_features} x {self.in_features}"
            raise ValueError(f"the int8 weight is {sizes.rows} x {sizes.cols}, and the layer {wanted}")

    def align(self) -> None:
        """Let the bytes begin where the kernels can read them."""
        self.packed = aligned(self.packed)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.dtype = dtype_after(fn, self.dtype, self.packed.device)
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        given = state_dict.get(f"{prefix}packed")
        if isinstance(given, Tensor):  # another pattern or layout may have more bytes, or fewer
            loaded = DynamicInt8Linear(given, None, (self.out_features, self.in_features))
            if not given.is_meta:
                loaded.check()
            self.packed = torch.empty_like(given, device=self.packed.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.align()

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        if self.packed.is_meta:
            return shape
        fixed = f", activations {self.range.scale:.3g} * (0..254 - {self.range.zero})" if self.range else ""
        return f"{shape}, {self.layout}{fixed}"


def check_tokens(x: Tensor, cols: int) -> None:
    """Raise an error if x can't be multiplied by a quantized weight with this number of columns.

    Examples
    --------
    >>> import torch
    >>> check_tokens(torch.ones(2, 3), 4)
    Traceback (most recent call last):
    ValueError: x has shape (2, 3); its last dimension must be 4
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}: a quantized layer takes floats, so give it x.float()")
    if x.dim() == 0 or x.shape[-1] != cols:
        raise ValueError(f"x has shape {tuple(x.shape)}; its last dimension must be {cols}")


def is_transformed(x: Tensor) -> bool:
    """Does x belong to a transform of ``torch.func``, or has it a tangent? Then only torch's own operators will do."""
    return not _is_traced() and transformed([x])


def linear_like(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``F.linear`` in the type of x.

    Examples
    --------
    >>> import torch
    >>> linear_like(torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2), torch.ones(1))
    tensor([[3.]], dtype=torch.float64)
    """
    return nn.functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def dtype_after(fn: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that a weight would have after what a module applies to its parameters.

    Examples
    --------
    >>> import torch
    >>> dtype_after(torch.Tensor.half, torch.float32, torch.device("cpu"))
    torch.float16
    """
    return fn(torch.empty(0, dtype=dtype, device=device)).dtype


def dense_layer(weight: Tensor, bias: nn.Parameter | None, inputs_first: bool) -> nn.Module:
    """Return a Linear with this weight, [outputs, inputs]; or transformers' Conv1D.

    Examples
    --------
    >>> import torch
    >>> dense_layer(torch.ones(2, 3), None, inputs_first=False)
    Linear(in_features=3, out_features=2, bias=False)
    """
    with torch.device("meta"):
        if inputs_first:
            from transformers.pytorch_utils import Conv1D

            made: nn.Module = Conv1D(*weight.shape)
        else:
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight.t().contiguous() if inputs_first else weight)
    made.bias = bias  # type: ignore[assignment]
    return made


def quantize_dynamic_(model: nn.Module, where: Where, calibration: Iterable[Any] | None = None) -> nn.Module:
    """Let linear layers, dense and sparse, compute in eight bits; see :func:`gossamer.quantize_`."""
    weights = {name: weight for name, weight in all_weights(model).items() if _suits(weight)}
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to quantize: it must be in floating point, on a CPU, and not "
            "tied to an embedding. Layers that are already quantized don't count."
        )
    names = chosen(weights, where)
    layers = [module for name in names for module, _ in weights[name].places]
    ranges = {} if calibration is None else observe(model, layers, calibration)
    made: dict[int, DynamicInt8Linear] = {}
    for name in names:
        try:
            layers_of = quantized(weights[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        for module, layer in layers_of:
            if module in ranges:
                layer.packed = with_range(layer.packed, ranges[module])
            made[id(module)] = layer
    return put_all(model, made)


@torch.no_grad()
def quantized(weight: Weight) -> list[tuple[nn.Module, DynamicInt8Linear]]:
    """Return each module with this weight, and a layer in eight bits for it, in the layout that is mostly the fastest.

    Layers that are tied hold the same bytes.
    """
    turned = inputs_first(weight.module)
    dense, mask = weight.dense(), weight.mask() if weight.is_sparse else weight.dense() != 0
    dense, mask = (dense.t(), mask.t()) if turned else (dense, mask)
    packed, shape = pack_as(rounded(dense), mask, usual(mask)), (mask.shape[0], mask.shape[1])
    layers: Any = [module for module, _ in weight.places]
    return [(m, DynamicInt8Linear(packed, m.bias, shape, turned, dense.dtype).train(m.training)) for m in layers]


def _suits(weight: Weight) -> bool:
    """Is it the weight of linear layers alone? One that is tied to an embedding is not."""
    linear = all(n == "weight" and (dense_class(m) is nn.Linear or inputs_first(m)) for m, n in weight.places)
    return linear and weight.parameter.is_floating_point() and weight.parameter.is_cpu


def check_packed(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor of a file has the name of a layer's bytes and doesn't fit."""
    path, _, last = name.rpartition(".")
    layer = model.get_submodule(path)
    if last == "packed" and isinstance(layer, DynamicInt8Linear):
        DynamicInt8Linear(tensor, None, (layer.out_features, layer.in_features)).check()


def expect_packed(model: nn.Module, sizes: Mapping[str, int]) -> dict[str, nn.Module]:
    """Put an empty DynamicInt8Linear of this size where a linear layer of this name is; return what was there."""
    taken = {}
    for name, size in sizes.items():
        try:
            layer: Any = model.get_submodule(name)
        except AttributeError:
            continue  # the caller reports that it is missing
        turned = inputs_first(layer)
        if isinstance(layer, DynamicInt8Linear):
            shape, turned, dtype = (layer.out_features, layer.in_features), layer.inputs_first, layer.dtype
        elif dense_class(layer) is nn.Linear or turned:
            rows, cols = (layer.nf, layer.nx) if turned else (layer.out_features, layer.in_features)
            shape, dtype = (rows, cols), layer.weight.dtype
        else:
            continue
        packed = torch.empty(size, dtype=torch.uint8, device="meta")
        put(model, name, DynamicInt8Linear(packed, layer.bias, shape, turned, dtype))
        taken[name] = layer
    return taken
