"""Patterns from strings: "90%", "2:4", "1:8:g16", ..."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from ._checks import from_percent
from .base import Pattern
from .blocks import Blocks
from .fan_in import FanIn
from .grouped_nm import GroupedNM
from .keep_all import KeepAll
from .nm import NM
from .threshold import Threshold
from .unstructured import Unstructured
from .vnm import VNM


class _Form(NamedTuple):
    example: str
    regex: str
    build: Callable[..., Pattern]


_INT = r"(\d+)"
_PERCENT = r"(\d+(?:\.\d*)?|\.\d+) ?%"
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"

_FORMS = (
    _Form("90%", _PERCENT, lambda p: Unstructured(from_percent(p))),
    _Form("90% per row", _PERCENT + " per (row|tensor|model)", lambda p, per: Unstructured(from_percent(p), per)),
    _Form("2:4", f"{_INT}:{_INT}", lambda n, m: NM(int(n), int(m))),
    _Form("1:8:g16", f"{_INT}:{_INT}:g{_INT}", lambda n, m, g: GroupedNM(int(n), int(m), int(g))),
    _Form("64:2:8", f"{_INT}:{_INT}:{_INT}", lambda v, n, m: VNM(int(v), int(n), int(m))),
    _Form("all:2:8", f"all:{_INT}:{_INT}", lambda n, m: VNM("all", int(n), int(m))),
    _Form("fan-in 90%", f"fan-in {_PERCENT}", lambda p: FanIn(from_percent(p))),
    _Form("fan-in k=32", f"fan-in (?:k ?= ?)?{_INT}", lambda k: FanIn(k=int(k))),
    _Form(
        "block 4x4 80%", f"block {_INT}x{_INT} {_PERCENT}", lambda h, w, p: Blocks(from_percent(p), (int(h), int(w)))
    ),
    _Form("|x| > 0.01", rf"(?:\|x\| ?)?> ?{_NUMBER}", lambda t: Threshold(float(t))),
    _Form("keep all", "keep[ -]all", KeepAll),
)


def as_pattern(how: Pattern | str) -> Pattern:
    """A pattern, from a pattern or from a string in one of the forms below. Case and extra spaces don't matter.

    ================  =========================================
    "90%"             `Unstructured(0.9)`
    "90% per row"     `Unstructured(0.9, per="row")`, or "per model"
    "2:4"             `NM(2, 4)`
    "1:8:g16"         `GroupedNM(1, 8, 16)`
    "64:2:8"          `VNM(64, 2, 8)`
    "all:2:8"         `VNM("all", 2, 8)`
    "fan-in 90%"      `FanIn(0.9)`
    "fan-in k=32"     `FanIn(k=32)`
    "block 4x4 80%"   `Blocks(0.8, (4, 4))`
    "|x| > 0.01"      `Threshold(0.01)`
    "keep all"        `KeepAll()`
    ================  =========================================

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
    for form in _FORMS:
        match = re.fullmatch(form.regex, text)
        if match:
            return form.build(*match.groups())
    raise ValueError(_unknown(how, text))


def _unknown(how: str, text: str) -> str:
    allowed = ", ".join(f'"{form.example}"' for form in _FORMS)
    # Numbers differ between any two uses: compare the shapes of the strings, with # for each number.
    shapes = {re.sub(r"[\d.]+", "#", form.example): form.example for form in _FORMS}
    near = get_close_matches(re.sub(r"[\d.]+", "#", text), shapes, n=1, cutoff=0.5)
    hint = f' Did you mean something like "{shapes[near[0]]}"?' if near else ""
    return f"Unknown pattern {how!r}.{hint} Allowed forms: {allowed}."
