"""Layers whose names differ in numbers only are one kind: long tables in short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from gossamer.report.page import Html

if TYPE_CHECKING:
    from gossamer.report.layers import LayerFacts

Item = TypeVar("Item")


def kind_of(name: str) -> str:
    """Return a name with its numbers as stars.

    Examples
    --------
    >>> kind_of("encoder.layer.11.output.dense.weight")
    'encoder.layer.*.output.dense.weight'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def groups(items: Iterable[Item], key: Callable[[Item], tuple[str, ...]]) -> dict[tuple[str, ...], list[Item]]:
    """Return items of one kind together, in the order of the first of each; the key starts with a name.

    Examples
    --------
    >>> {kind: len(found) for kind, found in groups(["0.weight", "0.bias", "1.weight"], lambda x: (x,)).items()}
    {('*.weight',): 2, ('*.bias',): 1}
    """
    found: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        name, *rest = key(item)
        found.setdefault((kind_of(name), *rest), []).append(item)
    return found


def overview(layers: Sequence[LayerFacts], cases: Sequence[str], several: bool) -> Html:
    """Return a row for each kind of layers with its gains, which opens to the layers of that kind."""
    heads = ["kind", "layers", *(f"{case}: gain" for case in cases), "sparsity", "of dense bytes"]
    rows = []
    for (kind, format, model), same in groups(layers, lambda x: (x.name, x.format, x.model)).items():
        name = escape(f"{model} {kind}" if several else kind)
        first = f"{name} <small>{escape(format.removesuffix('()'))}</small>"
        inside = "".join(f"<li>{_cells(escape(x.name), '', *_figures([x], cases))}</li>" for x in same)
        summary = _cells(first, str(len(same)), *_figures(same, cases))
        rows.append(f"<details><summary>{summary}</summary><ul>{inside}</ul></details>")
    head = f'<div class="head">{_cells(*map(escape, heads))}</div>'
    table = f'<div class="kinds" style="--n: {len(heads) - 1}">{head}{"".join(rows)}</div>'
    return Html(f'<div class="scroll">{table}</div>')


def _cells(first: str, *figures: str) -> str:
    return f"<span>{first}</span>" + "".join(f'<span class="n">{figure}</span>' for figure in figures)


def _figures(same: Sequence[LayerFacts], cases: Sequence[str]) -> list[str]:
    gains = []
    for case in cases:
        times = [t for x in same for t in x.times if t.case == case]
        dense, ours = sum(t.dense_us for t in times), sum(t.us for t in times)
        gains.append(f"{dense / ours:.2f}x" if ours else "–")
    size: Any = sum(x.size for x in same)
    zeros = sum(x.sparsity * x.size for x in same) / max(size, 1)
    share = sum(x.bytes for x in same) / max(sum(x.dense_bytes for x in same), 1)
    return [*gains, f"{zeros:.1%}", f"{share:.2f}x"]
