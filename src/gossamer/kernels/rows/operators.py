"""The products of packed rows, as torch operators: schemas, fake functions and gradients; the kernels are native.

``A`` are packed rows (:mod:`gossamer.formats.packed`), x is [..., cols]. The gradients of the first and of those that
end in ``_t`` and ``_sample`` are in :mod:`gossamer.kernels.rows.product`:

- ``rows_linear``: act(x @ A.T + bias); ``rows_forward`` is the same for calls that autograd has no part in,
- ``rows_linear_t``: g @ A,
- ``rows_int8``: rows_linear of int8 values, each row with a scale; its weight has no gradient,
- ``rows_sample``: sum over tokens of left[:, row] * right[:, col] at every place; ``rows_sample_forward`` likewise,
- ``rows_registered``: rows_forward of an A that ``rows_register`` gave a number, in 1.5 us less,
- ``rows_conv2d``: act(convolution of images x with A + bias), without gradients,
- ``rows_gather``: values in another order, which has no gradient of its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.restack import enough, plain, restack, target_of
from gossamer.formats import PackedCSR, PackedNear, PackedNM, Structure
from gossamer.formats.levels.halves import halves
from gossamer.formats.levels.near_lanes import near_entries
from gossamer.formats.packed import PackedRows, block_of
from gossamer.kernels.images import output_places

_A = "Tensor? row, Tensor? pos, Tensor crd"
_SIZES = "int rows, int cols, int block, int tile, int window, int per"
_library = torch.library.Library("gossamer", "FRAGMENT")
for _name in ("rows_linear", "rows_forward"):
    _library.define(f"{_name}({_A}, Tensor values, Tensor x, Tensor? bias, {_SIZES}, int activation) -> Tensor")
_library.define(
    f"rows_int8({_A}, Tensor values, Tensor scale, Tensor x, Tensor? bias, {_SIZES}, int activation) -> Tensor"
)
_library.define(f"rows_linear_t({_A}, Tensor values, Tensor grad, {_SIZES}) -> Tensor")
for _name in ("rows_sample", "rows_sample_forward"):
    _library.define(f"{_name}({_A}, Tensor left, Tensor right, {_SIZES}) -> Tensor")
_library.define(
    f"rows_conv2d({_A}, Tensor values, Tensor x, Tensor? bias, {_SIZES}, int kernel_h, int kernel_w, int stride_h, "
    "int stride_w, int dilation_h, int dilation_w, int left, int right, int top, int bottom, int activation) -> Tensor"
)
_library.define(f"rows_register({_A}, {_SIZES}) -> int")
_library.define(
    "rows_registered(Tensor values, Tensor x, Tensor? bias, int number, int rows, int activation) -> Tensor"
)
_library.define("rows_gather(Tensor values, Tensor places) -> Tensor")

#: Types of values; sums are float32.
STORED = (torch.float32, torch.bfloat16, torch.float16)
#: What the kernels read as it is; float16 is converted first.
NATIVE = (torch.float32, torch.bfloat16)


class Rows(NamedTuple):
    """The arrays and sizes of packed rows, in the order of the operators' arguments."""

    arrays: tuple[Tensor | None, Tensor | None, Tensor]
    sizes: tuple[int, int, int, int, int, int]  # rows, cols, block, tile, window, per


def rows_of(structure: Structure) -> Rows:
    """Return what the operators take, of a structure in a packed format."""
    format, arrays = structure.format, structure.arrays
    assert isinstance(format, PackedRows)
    rows, cols = format.matrix_sizes(structure.shape)
    sizes = (rows, cols, block_of(rows), format.tile, format.window, format.per)
    return Rows((arrays.get("crd2"), arrays.get("pos3"), arrays["crd3"]), sizes)


def _halved(window: int) -> bool:
    """Do two steps share a byte? As Rows::nibbles() of native/cpu/rows.h."""
    return 0 < window <= 15


def _places(crd: Tensor, window: int) -> int:
    """How many values packed rows with such columns have."""
    return crd.shape[0] * (2 if _halved(window) else 1)


def used(crd: Tensor, tile: int, window: int, per: int) -> Tensor:
    """Which places have an entry."""
    if window and not per:
        return near_entries(crd)
    return (halves(crd) if _halved(window) else crd) != (window if per else tile)


class _Transpose(NamedTuple):
    rows: Rows
    places: Tensor  # int32: place of each value of the transpose in the values, -1 where it has none


_transposes: Any = WeakIdKeyDictionary()


def _transpose(row: Tensor | None, pos: Tensor | None, crd: Tensor, sizes: tuple[int, ...]) -> _Transpose:
    """Packed rows of A.T; made once for a structure and kept as long as its arrays are."""
    known = _transposes.get(crd)
    # tensors of another shape, or with other rows, may share these columns
    if known is not None and known[1] == sizes and all(map(_same, known[0], (row, pos))):
        return known[2]
    rows, cols, _, tile, window, per = sizes
    # `per` of every `window` columns is n:m whatever finer promise was made
    format = PackedNM(per, window) if per else PackedNear(tile) if window else PackedCSR(tile)
    arrays = {"crd3": crd} if row is None or pos is None else {"crd2": row, "pos3": pos, "crd3": crd}
    made, index = _turned(Structure(format, (rows, cols), arrays, crd.device))
    index = torch.where(made.arrays[2] == made.sizes[3], -1, index).int()
    result = _Transpose(made, index)
    _transposes[crd] = (row, pos), sizes, result  # which keeps both, so that their addresses are nobody else's
    return result


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Are these the same array?"""
    return one is other or (one is not None and other is not None and one.data_ptr() == other.data_ptr())


def _turned(structure: Structure) -> tuple[Rows, Tensor]:
    """The columns of a matrix as packed rows, and the place in its values of each of theirs (0 for padding)."""
    format, (rows, cols) = PackedCSR(order=(1, 0)), structure.shape
    compiled = None
    if enough(math.prod(structure.value_shape)) and plain(*structure.arrays.values()):
        target = target_of(format, (rows, cols))
        compiled = restack(structure, target)
        if compiled is None:  # a level that can't be walked: by the numbers of its entries
            keys, where = structure.entries()
            compiled = restack(keys, target, numbers=True)
            if compiled is not None and compiled.where is not None and where is not None:
                compiled = compiled._replace(where=where[compiled.where])
    if compiled is not None and compiled.where is not None:
        made = rows_of(Structure(format, (rows, cols), compiled.arrays, structure.device))
        return made, moved(compiled.where.long(), None, compiled.place, compiled.entries, compiled.places)
    keys, where = structure.entries()
    assert where is not None
    turned = keys % cols * rows + keys // cols
    order = torch.argsort(turned)
    made_by_torch, place = Structure.from_keys(PackedCSR(), turned[order], (cols, rows))
    made = rows_of(made_by_torch)
    index = torch.zeros(made.arrays[2].numel(), dtype=torch.int64)
    index[place] = where[order]
    return made, index


def linear_t(
    row: Tensor | None, pos: Tensor | None, crd: Tensor, values: Tensor, grad: Tensor, rows: int, cols: int, *sizes: int
) -> Tensor:
    """Return grad @ A; autograd takes no notice of it."""
    if not (crd.numel() and grad.numel()):
        return grad.new_zeros((*grad.shape[:-1], cols))
    t = _transpose(row, pos, crd, (rows, cols, *sizes))
    turned = _gather(values, t.places)
    return _forward(*t.rows.arrays, turned, grad, None, *t.rows.sizes, 0)


_library.impl("rows_linear_t", linear_t, "CPU")
_forward, _gather = torch.ops.gossamer.rows_forward.default, torch.ops.gossamer.rows_gather.default

for _name in ("rows_forward", "rows_sample_forward", "rows_gather", "rows_conv2d", "rows_register", "rows_registered"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # a third of a call's time saved


@torch.library.register_fake("gossamer::rows_linear", lib=_library)
@torch.library.register_fake("gossamer::rows_forward", lib=_library)
def _(row: Any, pos: Any, crd: Any, values: Any, x: Tensor, bias: Any, rows: int, *sizes: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("gossamer::rows_registered", lib=_library)
def _(values: Any, x: Tensor, bias: Any, number: int, rows: int, activation: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("gossamer::rows_int8", lib=_library)
def _(row: Any, pos: Any, crd: Any, values: Any, scale: Any, x: Tensor, bias: Any, rows: int, *sizes: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("gossamer::rows_conv2d", lib=_library)
def _(row: Any, pos: Any, crd: Any, values: Any, x: Tensor, bias: Any, rows: int, *sizes: int) -> Tensor:
    return x.new_empty((x.shape[0], rows, *output_places(x.shape[2:], sizes[5:])))


@torch.library.register_fake("gossamer::rows_linear_t", lib=_library)
def _(row: Any, pos: Any, crd: Any, values: Any, grad: Tensor, rows: int, cols: int, *sizes: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], cols))


@torch.library.register_fake("gossamer::rows_gather", lib=_library)
def _(values: Tensor, places: Tensor) -> Tensor:
    return values.new_empty(places.shape)


@torch.library.register_fake("gossamer::rows_sample", lib=_library)
@torch.library.register_fake("gossamer::rows_sample_forward", lib=_library)
def _(row: Any, pos: Any, crd: Tensor, left: Tensor, right: Any, *sizes: int) -> Tensor:
    return left.new_empty(_places(crd, sizes[4]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.rest = [v for v in inputs if not isinstance(v, int)], [v for v in inputs if isinstance(v, int)]
    ctx.save_for_backward(*tensors)


def _int8_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *arrays, values, scale, _, bias = ctx.saved_tensors
    *sizes, activation = ctx.rest
    if activation:
        raise NotImplementedError("a fused activation has no gradient: apply it after the product")
    grad = grad.contiguous()
    needs = ctx.needs_input_grad
    grad_x = torch.ops.gossamer.rows_linear_t(*arrays, values.float(), grad * scale, *sizes) if needs[5] else None
    return (*(None,) * 5, grad_x, grad.sum(0) if bias is not None and needs[6] else None, *(None,) * 7)


torch.library.register_autograd("gossamer::rows_int8", _int8_backward, setup_context=_save, lib=_library)
