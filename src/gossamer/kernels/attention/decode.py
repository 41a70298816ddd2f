"""Attention of single queries over a cache of keys, as a torch operator; the kernel is for GPUs.

``decode_attention(q, k, v, mask, scale)`` is softmax(q @ k.T * scale) @ v for q [batch, heads, 1, width] and k, v
[batch, groups, keys, width], where ``heads / groups`` queries share the keys of a group. The result is [batch, 1,
heads, width]. The mask is bool [1 or batch, 1, 1, keys]: the kernel does not read the keys and values that it forbids,
such as the places of a static cache that are not in use yet. It has no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import gpu
from gossamer.kernels.gpu import ELEMENTS, Kinds
from gossamer.kernels.product import needed
from gossamer.native.cuda import calls, function, usable
from gossamer.native.cuda.calls import Address, Argument, Buffer, Call

_library = torch.library.Library("gossamer", "FRAGMENT")
for _name in ("decode_attention", "decode_attention_slow"):
    _library.define(f"{_name}(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale) -> Tensor")
_Q, _K, _V, _MASK, _OUT, _PART = range(6)
_PARAMETERS = "P P P P 9q P P q i i f"
_THREADS, _KEYS = 128, 16  # of a block; of a group of keys
_MOST_WIDTH, _MOST_ROWS, _MOST_GROUPS = 128, 16, 4096  # the last: of one block
_EACH = 16  # groups that each of several blocks should have
_LOG2_E = math.log2(math.e)


def takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Return why the kernel can't compute this attention, or None.

    Examples
    --------
    >>> import torch
    >>> q, k = torch.zeros(1, 8, 1, 64).half(), torch.zeros(1, 2, 99, 64).half()
    >>> takes(q, k, k, None), takes(q, k.float(), k, None)
    ('the kernel is for a GPU, and this is a cpu', 'q, k and v are float16 or bfloat16, and of one type')
    """
    if any(x.dtype is not q.dtype or x.dim() != 4 for x in (k, v)) or q.dtype not in (torch.float16, torch.bfloat16):
        return "q, k and v are float16 or bfloat16, and of one type"
    batch, heads, length, width = q.shape
    if length != 1 or k.shape != v.shape or k.shape[0] != batch or k.shape[3] != width or heads % k.shape[1]:
        return "one query for each head, and keys and values of one shape"
    if width % 16 or width > _MOST_WIDTH or heads // k.shape[1] > _MOST_ROWS:
        return f"heads of a multiple of 16 columns up to {_MOST_WIDTH}, of which {_MOST_ROWS} at most share keys"
    if mask is not None and (mask.dtype is not torch.bool or mask.shape[1:] != (1, 1, k.shape[2])):
        return "a mask is bool [batch, 1, 1, keys]"
    if not q.is_cuda:
        return f"the kernel is for a GPU, and this is a {q.device.type}"
    return None if _has_kernel(q.get_device()) else "the kernel needs compute capability 8.0"


def _has_kernel(device: int) -> bool:
    """Can a GPU run the kernel? A constant in traces."""
    return gpu.capability(device) >= (8, 0)


_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor | None:
    """Return attention of q [batch, heads, 1, width] over k and v [batch, groups, keys, width], or None.

    The result is [batch, 1, heads, width]; None where the kernel is not for these operands, or where a gradient is
    recorded.

    Examples
    --------
    >>> import torch
    >>> q, k = torch.zeros(1, 8, 1, 64).half(), torch.zeros(1, 2, 99, 64).half()
    >>> decode_attention(q, k, k) is None  # on a CPU
    True
    """
    if needed(q, k, v) or takes(q, k, v, mask) is not None:
        return None
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)
    out: Tensor = torch.ops.gossamer.decode_attention.default(q, k, v, mask, factor)
    return out


# -- the operator


def by_torch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the same, by torch's attention."""
    batch, heads, _, width = q.shape
    rows = q.reshape(batch, k.shape[1], heads // k.shape[1], width)
    out = F.scaled_dot_product_attention(rows, k, v, mask, scale=scale)
    return out.reshape(batch, 1, heads, width)


@torch.library.register_fake("gossamer::decode_attention", lib=_library)
def _(q: Tensor, k: Any, v: Any, mask: Any, scale: float) -> Tensor:
    return q.new_empty((q.shape[0], 1, q.shape[1], q.shape[3]))


def prepare(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Any, ...] | None:
    """Return the arguments in an order that the kernel takes; None if there is nothing to compute."""
    if not usable() or not q.numel() or not k.shape[2]:
        return None
    if mask is not None:
        mask = mask if mask.stride(3) == 1 else mask.contiguous()
    return _lines(q), _lines(k), _lines(v), mask, scale


def _lines(x: Tensor) -> Tensor:
    """Return x, or a copy, whose rows begin at multiples of 16 bytes."""
    *strides, one = x.stride()
    return x if one == 1 and not any(n % 8 for n in strides) and x.data_ptr() % 16 == 0 else x.contiguous()


def parts_of(blocks: int, keys: int, processors: int) -> int:
    """Return among how many blocks the keys of one head are divided: until there is work for all processors.

    Examples
    --------
    >>> [parts_of(blocks, keys, 132) for blocks, keys in ((1024, 256), (8, 256), (8, 4096), (1, 1_000_000))]
    [1, 1, 16, 264]
    """
    groups = -(-keys // _KEYS)
    wanted = min(2 * processors // blocks, groups // _EACH)
    return max(1, wanted, -(-groups // _MOST_GROUPS))


def decide(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Call:
    """Return what operands of a kind launch."""
    batch, heads, _, width = q.shape
    groups, keys, device = k.shape[1], k.shape[2], q.get_device()
    parts = parts_of(batch * groups, keys, gpu.processors(device))
    options: dict[str, Any] = {"ELEMENT": ELEMENTS[q.dtype], "WIDTH": width}
    shared = 16 * _KEYS * (2 * width + 16) + 64 + 4 * -(-keys // (_KEYS * parts))
    made = {"MASKED": int(mask is not None), "PARTS": int(parts > 1)}
    run = function(
        "decode.cu", "decode", device, _PARAMETERS, shared=shared, chained=gpu.capability(device) >= (9, 0),
        **made, **options,
    )  # fmt: skip
    rows = batch * heads
    result = Buffer((batch, 1, heads, width), (heads * width, heads * width, width, 1), q.dtype)
    out, part = (_OUT, None) if parts == 1 else (_PART, _OUT)  # the result is the last buffer
    arguments: tuple[Argument, ...] = (
        Address(_Q), Address(_K), Address(_V), Address(_MASK), q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        k.stride(2), v.stride(0), v.stride(1), v.stride(2), 0 if mask is None or mask.shape[0] == 1 else mask.stride(0),
        Address(out), 0 if part is None else Address(part), keys, groups, heads // groups, scale * _LOG2_E,
    )  # fmt: skip
    first = calls.Launch(run, (batch * groups, parts, 1), _THREADS, arguments)
    if part is None:
        return Call((result,), (first,), (_Q, _K, _V))
    numbers = parts * rows  # of each part: results, then the largest score and the sum of the weights of each row
    combine = function("attention.cu", "combine", device, "P P P P q i", **options)
    tops = 4 * numbers * width
    combined: tuple[Argument, ...] = (
        Address(part), Address(part, tops), Address(part, tops + 4 * numbers), Address(out), rows, parts
    )  # fmt: skip
    second = calls.Launch(combine, (-(-rows * width // (2 * _THREADS)), 1, 1), _THREADS, combined)
    return Call((Buffer((numbers * (width + 2),), (1,), torch.float32), result), (first, second), (_Q, _K, _V))


KINDS = Kinds(4, prepare, decide, by_torch, None)
_library.impl("decode_attention", by_torch, "CPU")
_library.impl("decode_attention", torch.library.fallthrough_kernel, "Autograd")
_library.impl("decode_attention_slow", torch.library.fallthrough_kernel, "Autograd")
gpu.register(_library, "decode_attention", KINDS)
