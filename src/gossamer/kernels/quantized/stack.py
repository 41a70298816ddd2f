"""The weights of several experts in 8 bits, 2:4 or V:N:M: one below the other, as one launch multiplies them.

The values and metadata are those of ``PackedVNM(rows, 2, m, 8)`` for all rows of all experts. Everything here works on
one expert after the other, so that it takes little memory beside the weight itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.kernels.quantized.layout import Layout, Numbers
from gossamer.kernels.quantized.weight import Arrays, decoded, quantized
from gossamer.kernels.quantized.weight import check as check_one
from gossamer.kernels.vnm.experts import ROWS
from gossamer.kernels.vnm.experts_eight import STEP, TILE_META, TILE_VALUES, part_of

Shape = tuple[int, int, int]
_HALF = torch.float16, torch.bfloat16
_product = torch.ops.gossamer.vnm_experts_8bit.default


def layout_of(numbers: Numbers, rows: int, m: int) -> Layout:
    """Return the layout of experts with these rows that keep 2 of every m columns, the same four together.

    Examples
    --------
    >>> str(layout_of("fp8", 128, 8)), str(layout_of("fp8", 128, 4))
    ('fp8 128:2:8', 'fp8 2:4')
    """
    return Layout(numbers, "all" if m == 4 else rows, m)


def stacked(dense: Tensor, layout: Layout) -> Arrays:
    """Return the weights of experts, [experts, rows, columns], in a layout; ValueError if it can't hold them.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> dense, layout = torch.eye(64).expand(3, 64, 64), Layout("fp8", "all", 4)
    >>> arrays = stacked(dense, layout)
    >>> arrays.values.shape, arrays.scale.shape, torch.equal(decoded_stack(arrays, layout, (3, 64, 64)), dense)
    (torch.Size([12288]), torch.Size([192]), True)
    """
    check_layout(layout, (dense.shape[0], dense.shape[1], dense.shape[2]))
    each = [quantized(one, _of_one(layout)) for one in dense]
    joined = [_joined([arrays[part] for arrays in each], dense.shape[1]) for part in (0, 3)]  # type: ignore[misc]
    shared = None if layout.m == 4 else torch.cat([arrays.shared for arrays in each])  # type: ignore[misc]
    return Arrays(joined[0], torch.cat([arrays.scale for arrays in each]), shared, joined[1])


def _joined(parts: list[Tensor], rows: int) -> Tensor:
    """Values or metadata of all experts: of each step, the tiles of every expert."""
    dtype = parts[0].dtype
    tile, held = (TILE_META, dtype) if dtype is torch.int32 else (TILE_VALUES, torch.int8)  # torch has more for int8
    return torch.cat([part.view(held).view(-1, 1, rows // ROWS * tile) for part in parts], 1).view(-1).view(dtype)


def one_of(arrays: Arrays, shape: Shape, number: int) -> Arrays:
    """Return the arrays of one expert, as those of a linear layer."""
    values, scale, shared, meta = arrays
    count, rows, _ = shape
    assert meta is not None
    own = values.new_empty(0, dtype=torch.uint8) if shared is None else shared[number : number + 1]
    parts = [part_of(array, count, rows, number) for array in (values, meta)]
    return Arrays(parts[0], scale.view(count, rows)[number], own, parts[1])


def decoded_one(arrays: Arrays, layout: Layout, shape: Shape, number: int) -> Tensor:
    """Return the weight of one expert as a dense float32 matrix."""
    return decoded(one_of(arrays, shape, number), _of_one(layout), (shape[1], shape[2]))


def decoded_stack(arrays: Arrays, layout: Layout, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the weights of all experts as a dense tensor."""
    each = [decoded_one(arrays, layout, shape, number).to(dtype) for number in range(shape[0])]
    return torch.stack(each) if each else arrays.values.new_zeros(shape, dtype=dtype)


def _of_one(layout: Layout) -> Layout:
    return Layout(layout.numbers, "all", layout.m)


def check_layout(layout: Layout, shape: Shape) -> None:
    """Raise ValueError unless experts of a shape can have this layout."""
    _, rows, cols = shape
    known = layout.numbers in ("fp8", "int8") and layout.m and not layout.weights_only
    if not known or layout != layout_of(layout.numbers, rows, layout.m):
        raise ValueError(f"experts of {rows} rows are in fp8 or int8, 2:4 or {rows}:2:m, not {layout}")
    if rows % ROWS or not rows or not cols or (layout.m != 4 and cols % layout.m):
        raise ValueError(
            f"{layout}: experts have a multiple of {ROWS} rows, and whole groups of {layout.m} columns, not "
            f"{rows} x {cols}"
        )


def check_stack(arrays: Arrays, layout: Layout, shape: Shape) -> None:
    """Raise ValueError unless arrays are the weights of experts in this layout: kernels read them without checking."""
    check_layout(layout, shape)
    (values, scale, shared, meta), (count, rows, cols) = arrays, shape
    steps = -(-cols // (STEP // 4 * layout.m))
    tiles = count * rows // ROWS * steps
    if meta is None or (shared is None) != (layout.m == 4):
        raise ValueError(f"{layout}: the columns are missing, or there are some for 2:4, which shares none")
    expected: list[tuple[Tensor, tuple[int, ...], torch.dtype]] = [
        (values, (tiles * TILE_VALUES,), layout.dtype),
        (meta, (tiles * TILE_META,), torch.int32),
    ]
    expected.append((scale, (count * rows,), torch.float32))
    if shared is not None:
        expected.append((shared, (count, steps * STEP // 4, 4), torch.uint8))
    for array, size, dtype in expected:
        if tuple(array.shape) != size or array.dtype is not dtype:
            raise ValueError(
                f"{layout}: an array of experts {shape} is {size} of {dtype}, not {tuple(array.shape)} of {array.dtype}"
            )
    for number in range(count):
        check_one(one_of(arrays, shape, number), _of_one(layout), (rows, cols))


def experts_product(
    x: Tensor, arrays: Arrays, layout: Layout, shape: Shape, bias: Tensor | None, ends: Tensor
) -> Tensor:
    """Return x @ W.T + bias with the weight of its expert for each token, for tokens that are sorted by expert.

    Where m > 4, x has the columns that its expert reads. On a GPU float32 is computed as bfloat16.

    Examples
    --------
    >>> import torch
    >>> weight = torch.stack([torch.eye(64), 2 * torch.eye(64)])
    >>> layout = Layout("fp8", "all", 4)
    >>> x, ends = torch.ones(3, 64).half(), torch.tensor([1, 3], dtype=torch.int32)
    >>> experts_product(x, stacked(weight, layout), layout, (2, 64, 64), None, ends)[:, 0]
    tensor([1., 2., 2.], dtype=torch.float16)
    """
    tokens = x.bfloat16() if x.is_cuda and x.dtype not in _HALF else x
    bias = None if bias is None else bias.to(tokens.dtype).reshape(-1)
    out: Tensor = _product(arrays.values, arrays.meta, arrays.scale, bias, tokens, ends, shape[1], tokens.shape[1])
    return out.to(x.dtype)
