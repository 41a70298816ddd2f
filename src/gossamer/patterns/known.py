"""The list of patterns, and functions that search it: to parse a string, or recognise a mask.

Recognition follows this order, the most specific first: a mask of 64:2:8 is also a mask of 2:8.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from torch import Tensor

from ._checks import as_matrix
from .base import Pattern
from .blocks import Blocks
from .fan_in import FanIn
from .grouped_nm import GroupedNM
from .keep_all import KeepAll
from .nm import NM
from .shared_nm import SharedNM
from .threshold import Threshold
from .transposable_nm import TransposableNM
from .unstructured import Unstructured
from .vnm import VNM

PATTERNS: tuple[type[Pattern], ...] = (
    KeepAll,
    Unstructured,
    Blocks,
    VNM,
    SharedNM,
    GroupedNM,
    NM,
    TransposableNM,
    FanIn,
    Threshold,
)


def as_pattern(how: Pattern | str) -> Pattern:
    """A pattern, from a pattern or from a string in one of the forms below. Case and extra spaces don't matter.

    ==================  =========================================
    "90%"               `Unstructured(0.9)`
    "90% per row"       `Unstructured(0.9, per="row")`, or "per model"
    "2:4"               `NM(2, 4)`
    "2:4 transposable"  `TransposableNM(2, 4)`
    "1:8:g16"           `GroupedNM(1, 8, 16)`
    "64:2:8"            `VNM(64, 2, 8)`
    "all:2:8"           `VNM("all", 2, 8)`
    "64:4:8 of 5"       `SharedNM(64, 5, 4, 8)`, a stage towards 64:2:8
    "fan-in 90%"        `FanIn(0.9)`
    "fan-in k=32"       `FanIn(k=32)`
    "block 4x4 80%"     `Blocks(0.8, (4, 4))`
    "|x| > 0.01"        `Threshold(0.01)`
    "keep all"          `KeepAll()`
    ==================  =========================================

    Examples
    --------
    >>> as_pattern("1:8:g16")
    GroupedNM(n=1, m=8, g=16)
    >>> as_pattern(str(as_pattern("fan-in 90%")))
    FanIn(sparsity=0.9, k=None)
    """
    if isinstance(how, Pattern):
        return how
    if not isinstance(how, str):
        raise TypeError(
            f"A pattern is a Pattern such as NM(2, 4) or a string such as '2:4', got {type(how).__name__}: {how!r}."
        )
    text = " ".join(how.lower().split())
    for kind in PATTERNS:
        for form in kind.forms:
            match = re.fullmatch(form.regex, text)
            if match:
                pattern: Pattern = form.build(*match.groups())
                return pattern
    raise ValueError(_unknown(how, text))


def _unknown(how: str, text: str) -> str:
    examples = [form.example for kind in PATTERNS for form in kind.forms]
    # Numbers differ between any two uses: compare the shapes of the strings, with # for each number.
    shapes = {re.sub(r"[\d.]+", "#", example): example for example in examples}
    near = get_close_matches(re.sub(r"[\d.]+", "#", text), shapes, n=1, cutoff=0.5)
    hint = f' Did you mean something like "{shapes[near[0]]}"?' if near else ""
    allowed = ", ".join(f'"{example}"' for example in examples)
    return f"Unknown pattern {how!r}.{hint} Allowed forms: {allowed}."


def recognise(mask: Tensor) -> Pattern | None:
    """The most specific pattern of a mask; None if it is irregular.

    A mask has a pattern if the pattern allows it and keeps at most 1.1 times its positions (`patterns.base.WASTE`): a
    2:4 weight in which training has set a few more values to zero is still 2:4. Full and empty masks are `KeepAll()`
    and `Unstructured(1.0)`. A small mask may look more regular than intended: two rows often have the same fan-in by
    chance.

    Parameters
    ----------
    mask
        A bool tensor of any shape, read as a matrix: dimension 0 and the rest.

    Examples
    --------
    >>> import torch
    >>> scores = torch.rand(128, 128, generator=torch.Generator().manual_seed(0))
    >>> [str(recognise(as_pattern(p).select(scores))) for p in ("2:4", "64:2:8", "block 4x4 75%", "fan-in k=8")]
    ['2:4', '64:2:8', 'block 4x4 75%', 'fan-in k=8']
    >>> recognise(Unstructured(0.9).select(scores)) is None
    True
    """
    matrix = as_matrix(mask.bool())
    found = (kind.recognise(matrix) for kind in PATTERNS)
    return next((pattern for pattern in found if pattern is not None), None)


def describe(mask: Tensor) -> str:
    """The pattern of a mask as text, for tables.

    Examples
    --------
    >>> import torch
    >>> mask = FanIn(k=2).select(torch.rand(8, 16))
    >>> mask[3] = False
    >>> describe(mask), describe(mask & False), describe(mask | True)
    ('fan-in k=2, 1 empty row', 'empty', 'dense')
    """
    matrix = as_matrix(mask.bool())
    pattern, empty = recognise(matrix), int((~matrix.any(1)).sum())
    if pattern == KeepAll():
        return "dense"
    if empty == len(matrix):
        return "empty"
    if pattern is None:
        return "unstructured"
    return f"{pattern}, {empty} empty row{'s' * (empty != 1)}" if empty else str(pattern)
