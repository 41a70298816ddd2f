"""The largest n of every m weights of a whole model, or V:N:M, in one launch: masks and sparse weights from dense
ones."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels import shared_columns
from gossamer.kernels.gpu import processors
from gossamer.native.cuda import function, usable
from gossamer.patterns import NM, VNM, Pattern

_MOST = 64  # arrays of a launch: the kernels have a table of them
_GROUPS = (4, 8, 16, 32)
#: The bits of infinity: whatever is above is NaN.
_INFINITY = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000, torch.float64: 0x7FF << 52}
_CODES = {2: "H", 4: "I", 8: "Q"}


def on_gpu(tensor: Tensor) -> bool:
    """Can kernels compute with it?"""
    return tensor.is_cuda and usable()


class Chosen(NamedTuple):
    """A matrix with all weights, and where its sparse weights and its mask are written."""

    dense: Tensor
    sparse: Tensor
    mask: Tensor

    def fits(self, m: int, shared: bool = False) -> bool:
        """Can the kernel choose groups of m of it? ``shared``: rows share columns."""
        dense, sparse, mask = self
        if not (
            on_gpu(dense) and sparse.device == mask.device == dense.device
            and dense.dtype is sparse.dtype and dense.dtype in _INFINITY and dense.shape[-1] % m == 0
            and all(one.is_contiguous() for one in self)
        ):  # fmt: skip
            return False
        if shared:
            return dense.dim() == 2 and shared_columns.can(m) and len(dense) * m < 2**31
        return m in _GROUPS and all(one.data_ptr() % min(m * one.element_size(), 16) == 0 for one in self)


class Chooser:
    """Chooses by a pattern, again and again; the host never waits for the GPU.

    Parameters
    ----------
    pattern
        n:m or V:N:M; :meth:`of` returns None for others.

    Examples
    --------
    >>> Chooser(NM(2, 4)).found_nan(), Chooser.of(VNM("all", 2, 64))
    (False, None)
    """

    def __init__(self, pattern: NM | VNM) -> None:
        self.pattern, self.m = pattern, pattern.m
        #: Rows that share columns; None: each row chooses alone.
        self.rows = pattern.v if isinstance(pattern, VNM) and pattern.v != 1 and pattern.m > 4 else None
        self.kind = self.m, self.rows is not None
        self._wrong: dict[torch.device, Tensor] = {}
        self._seen: list[tuple[Tensor, torch.cuda.Event]] = []

    @classmethod
    def of(cls, pattern: Pattern) -> Chooser | None:
        """A chooser, if there is a kernel for the pattern."""
        if type(pattern) is not NM and type(pattern) is not VNM:
            return None
        found = cls(pattern)
        return found if found.m in _GROUPS or (found.rows is not None and shared_columns.can(found.m)) else None

    def takes(self, one: Chosen) -> bool:
        """Can the kernel choose in this matrix?"""
        return one.fits(self.m, self.rows is not None)

    def __call__(self, matrices: Sequence[Chosen]) -> None:
        """Write masks and sparse weights of matrices that all fit."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Chosen]] = defaultdict(list)
        for one in matrices:
            kinds[one.dense.device, one.dense.dtype].append(one)
        for (device, dtype), some in kinds.items():
            if device not in self._wrong:
                self._wrong[device] = torch.zeros(1, dtype=torch.int32, device=device)
            for start in range(0, len(some), _MOST):
                self._launch(some[start : start + _MOST], dtype, self._wrong[device])
        self._seen = [_copied(flag) for flag in self._wrong.values()]
        torch.autograd.graph.increment_version([one for each in matrices for one in each[1:]])

    def _launch(self, some: Sequence[Chosen], dtype: torch.dtype, wrong: Tensor) -> None:
        if self.rows is None:
            launch(some, self.pattern.n, self.m, dtype, wrong)
        else:
            shared_columns.launch(some, self.rows, self.m, _INFINITY[dtype], wrong)

    def found_nan(self) -> bool:
        """Had the weights of the last call a NaN? The GPU has long answered, if this is asked a step later."""
        seen, self._seen = self._seen, []
        for _, event in seen:
            event.synchronize()
        found = any(bool(flag) for flag, _ in seen)
        if found:
            for flag in self._wrong.values():
                flag.zero_()
        return found


def _copied(flag: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Return a copy of a flag on the host that is on its way, and when it has arrived."""
    with torch.cuda.device(flag.device):
        copy = torch.empty(1, dtype=torch.int32, pin_memory=True).copy_(flag, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return copy, event


def launch(some: Sequence[Chosen], n: int, m: int, dtype: torch.dtype, wrong: Tensor) -> None:
    """Choose in up to 64 matrices of a type; NaN sets a flag, and leaves its group as it is."""
    size, device = dtype.itemsize, wrong.get_device()
    groups = [one.dense.numel() // m for one in some]
    rest = [0] * (_MOST - len(some))
    columns = ([one.data_ptr() for one in column] for column in zip(*some, strict=True))
    table = struct.pack(f"{4 * _MOST}Q", *(entry for column in (*columns, groups) for entry in (*column, *rest)))
    layout = f"{4 * _MOST * 8}s {_CODES[size]} P"
    run = function("choose.cu", "choose", device, layout, ITEM=size, ELEMENT=2, KEPT=n, GROUP=m)
    wide = max(1, min(-(-max(groups) // 256), 8 * processors(device)))
    run((wide, len(some), 1), 256, table, _INFINITY[dtype], wrong.data_ptr())
