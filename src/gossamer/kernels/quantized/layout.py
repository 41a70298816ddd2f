"""How a weight of 8 or 4 bits is arranged, and for which GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.formats import PackedVNM
from gossamer.kernels.gpu import named

Numbers = Literal["fp8", "int8", "int4"]
#: What the values of a weight are held in; int4 in words of eight.
DTYPES: dict[Numbers, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.int32}
_NEEDS: dict[Numbers, tuple[int, int]] = {"fp8": (8, 9), "int8": (8, 0), "int4": (8, 0)}
_TEXT = re.compile(r"(fp8|int8|int4)( weights)? (?:(dense|bitmap)|(?:(all|[1-9][0-9]{0,8}):)?2:([1-9][0-9]{0,2}))")


@dataclass(frozen=True)
class Layout:
    """Numbers, pattern, and whether activations are in 8 bits too.

    Parameters
    ----------
    numbers
        ``"fp8"`` is e4m3.
    v, m
        Of V:N:M with n = 2; m = 0: dense, or a bitmap.
    weights_only
        Activations stay in 16 bits.
    bitmap
        Any pattern, in e4m3: two planes of 2:4 (:mod:`gossamer.kernels.bitmap.planes`).

    Examples
    --------
    >>> str(Layout("fp8")), str(Layout("fp8", "all", 4)), str(Layout("int4", 64, 8, weights_only=True))
    ('fp8 dense', 'fp8 2:4', 'int4 weights 64:2:8')
    >>> Layout.read("fp8 all:2:8"), str(Layout("fp8", bitmap=True))
    (Layout(numbers='fp8', v='all', m=8, weights_only=False, bitmap=False), 'fp8 bitmap')
    """

    numbers: Numbers
    v: int | Literal["all"] = "all"
    m: int = 0
    weights_only: bool = False
    bitmap: bool = False

    def __str__(self) -> str:
        pattern = (
            "bitmap" if self.bitmap else "dense" if not self.m else "2:4" if self.m == 4 else f"{self.v}:2:{self.m}"
        )
        return f"{self.numbers}{' weights' * self.weights_only} {pattern}"

    @classmethod
    def read(cls, text: str) -> Layout:
        """Return the layout that a text stands for; ValueError if it is none."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"no layout of a quantized weight is called {text[:50]!r}")
        numbers, weights, whole, v, m = found.groups()
        rows: int | Literal["all"] = int(v) if v not in (None, "all") else "all"
        made = cls(numbers, rows, 0 if whole else int(m), weights is not None, whole == "bitmap")  # type: ignore[arg-type]
        none = (whole and weights) or (numbers == "int4" and not weights) or (made.bitmap and numbers != "fp8")
        if str(made) != text or none:
            raise ValueError(f"no layout of a quantized weight is called {text[:50]!r}")
        return made

    @property
    def dense(self) -> bool:
        """Whether zeros are stored too."""
        return not (self.m or self.bitmap)

    @property
    def dtype(self) -> torch.dtype:
        """What values are held in."""
        return DTYPES[self.numbers]

    @property
    def format(self) -> PackedVNM:
        """The order of the values and the columns of a sparse one, except a bitmap."""
        return PackedVNM(self.v, 2, self.m, 16 if self.weights_only else 8)

    def refusal(self, capability: tuple[int, int]) -> str | None:
        """Return why GPUs of a compute capability have no kernel for it; None if they have one.

        Examples
        --------
        >>> Layout("fp8", "all", 8).refusal((8, 9))
        '8-bit sparse tensor cores are used on compute capability 9.0, not compute capability 8.9'
        """
        if not (self.dense or self.weights_only):
            if capability == (9, 0):
                return None
            return f"8-bit sparse tensor cores are used on compute capability 9.0, not {named(capability)}"
        if self.m and self.numbers == "fp8":  # widened to 16 bits in the kernel
            return refusal("int4", capability)
        return refusal(self.numbers, capability)


def refusal(numbers: Numbers, capability: tuple[int, int]) -> str | None:
    """Return why GPUs of a compute capability can't compute with these numbers; None if they can.

    Examples
    --------
    >>> refusal("fp8", (8, 0))
    'fp8 needs compute capability 8.9 or later, and this GPU has compute capability 8.0'
    """
    need = _NEEDS[numbers]
    if capability >= need:
        return None
    return f"{numbers} needs {named(need)} or later, and this GPU has {named(capability)}"
