"""n:m, V:N:M or the largest weights of a whole model in few launches: masks and sparse weights from dense ones."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels import largest, shared_columns
from gossamer.kernels.gpu import processors
from gossamer.kernels.largest import Wanted
from gossamer.native.cuda import function, usable
from gossamer.patterns import NM, VNM, Pattern, Unstructured

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

    @property
    def plain(self) -> bool:
        """Can kernels read and write it?"""
        dense, sparse, mask = self
        return (
            on_gpu(dense) and sparse.device == mask.device == dense.device and dense.dtype is sparse.dtype
            and dense.dtype in _INFINITY and all(one.is_contiguous() for one in self) and dense.numel() < 2**31
        )  # fmt: skip

    def fits(self, m: int, shared: bool = False) -> bool:
        """Can the kernel choose groups of m of it? ``shared``: rows share columns."""
        dense = self.dense
        if not self.plain or dense.shape[-1] % m:
            return False
        if shared:
            return dense.dim() == 2 and shared_columns.can(m) and len(dense) * m < 2**31
        return m in _GROUPS and all(one.data_ptr() % min(m * one.element_size(), 16) == 0 for one in self)


class Chooser:
    """Chooses by a pattern, again and again; the host never waits for the GPU.

    Parameters
    ----------
    pattern
        n:m, V:N:M or a sparsity of each matrix; :meth:`of` returns None for others.

    Examples
    --------
    >>> Chooser(NM(2, 4)).found_nan(), Chooser.of(VNM("all", 2, 64))
    (False, None)
    """

    def __init__(self, pattern: NM | VNM | Unstructured) -> None:
        self.pattern = pattern
        self.m = 1 if isinstance(pattern, Unstructured) else pattern.m
        #: Rows that share columns; None: each row chooses alone.
        self.rows = pattern.v if isinstance(pattern, VNM) and pattern.v != 1 and pattern.m > 4 else None
        self.kind = type(pattern), self.m, self.rows is not None
        self._wrong: dict[torch.device, Tensor] = {}
        self._work: dict[torch.device, Tensor] = {}
        self._seen: list[tuple[Tensor, torch.cuda.Event]] = []

    @classmethod
    def of(cls, pattern: Pattern, before: Chooser | None = None) -> Chooser | None:
        """A chooser, if there is a kernel for the pattern. It knows what the one before it has seen of NaN."""
        if not _has_kernel(pattern):
            return None
        found = cls(pattern)  # type: ignore[arg-type]
        if before is not None:
            found._wrong, found._work, found._seen = before._wrong, before._work, before._seen
        return found

    def takes(self, one: Chosen) -> bool:
        """Can the kernel choose in this matrix?"""
        return one.plain if isinstance(self.pattern, Unstructured) else one.fits(self.m, self.rows is not None)

    def __call__(self, matrices: Sequence[Chosen], wanted: Sequence[Wanted] | None = None) -> None:
        """Write masks and sparse weights of matrices that are all taken.

        Parameters
        ----------
        matrices
            To choose in.
        wanted
            How many weights each keeps, if the pattern doesn't say.
        """
        for part, dtype, wrong in self._parts([one.dense for one in matrices]):
            counts = None if wanted is None else [wanted[number] for number in part]
            self._launch([matrices[number] for number in part], counts, dtype, wrong)
        self._seen = [_copied(flag) for flag in self._wrong.values()]
        written = [one for each in matrices for one in each[1:]]
        written += [each.wider for each in wanted or () if each.wider is not None]
        torch.autograd.graph.increment_version(written)

    def masks(self, matrices: Sequence[Tensor], wanted: Sequence[Wanted]) -> None:
        """Write only the masks of the second numbers, of matrices that are all plain."""
        for part, dtype, wrong in self._parts(matrices):
            arrays = [largest.Array(matrices[n], None, wanted[n].wider) for n in part]  # type: ignore[arg-type]
            counts = [Wanted(wanted[n].second) for n in part]
            largest.launch(arrays, counts, _INFINITY[dtype], wrong, self.work(wrong.device, dtype, 1))
        torch.autograd.graph.increment_version([one.wider for one in wanted if one.wider is not None])

    def _parts(self, matrices: Sequence[Tensor]) -> Iterator[tuple[list[int], torch.dtype, Tensor]]:
        """The numbers of the matrices of a launch, their type, and the flag of their device."""
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
        for number, one in enumerate(matrices):
            kinds[one.device, one.dtype].append(number)
        most = largest.MOST if isinstance(self.pattern, Unstructured) else _MOST
        for (device, dtype), numbers in kinds.items():
            if device not in self._wrong:
                self._wrong[device] = torch.zeros(1, dtype=torch.int32, device=device)
            for start in range(0, len(numbers), most):
                yield numbers[start : start + most], dtype, self._wrong[device]

    def _launch(
        self, some: Sequence[Chosen], wanted: Sequence[Wanted] | None, dtype: torch.dtype, wrong: Tensor
    ) -> None:
        if isinstance(self.pattern, Unstructured):
            if wanted is None:
                wanted = [Wanted(self.pattern.kept(one.dense.numel())) for one in some]
            ranks = 1 if wanted[0].wider is None else 2
            arrays = [largest.Array(*one) for one in some]
            largest.launch(arrays, wanted, _INFINITY[dtype], wrong, self.work(wrong.device, dtype, ranks))
        elif self.rows is None:
            launch(some, self.pattern.n, self.m, dtype, wrong)
        else:
            shared_columns.launch(some, self.rows, self.m, _INFINITY[dtype], wrong)

    def work(self, device: torch.device, dtype: torch.dtype, ranks: int) -> Tensor:
        """Return memory of the kernels that choose the largest."""
        held, size = self._work.get(device), largest.work_bytes(dtype, ranks)
        if held is None or len(held) < size:
            held = self._work[device] = torch.empty(size, dtype=torch.uint8, device=device)
        return held

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


def _has_kernel(pattern: Pattern) -> bool:
    if type(pattern) is Unstructured:
        return pattern.per == "tensor"
    if type(pattern) is VNM and pattern.v != 1 and pattern.m > 4:
        return shared_columns.can(pattern.m)
    return type(pattern) in (NM, VNM) and pattern.m in _GROUPS  # type: ignore[attr-defined]


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
