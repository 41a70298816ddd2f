"""Groups of layers, so that long tables become short: by kind (names that differ in numbers only) and by block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from gossamer.report.page import Html

if TYPE_CHECKING:
    from gossamer.report.layers import LayerFacts

Item = TypeVar("Item")
LONG = 30  # groups, from which on their table scrolls by itself


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


def block_of(name: str) -> str:
    """Return the block that a layer is in: its name up to the first number, or the first part of it.

    Examples
    --------
    >>> block_of("encoder.layer.11.output.dense.weight"), block_of("lm_head.weight")
    ('encoder.layer.11', 'lm_head')
    """
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: first + 1])


def overview(layers: Sequence[LayerFacts], cases: Sequence[str]) -> Html:
    """Return rows of groups with their gains, by kind and by block, which open to their layers."""
    models = list(dict.fromkeys(x.model for x in layers))
    ways: dict[str, Callable[[LayerFacts], tuple[str, str]]] = {
        "By kind": lambda x: (kind_of(x.name), x.format.removesuffix("()")),
        "By block": lambda x: (block_of(x.name), ""),
    }
    heads = ["", "layers", *(f"{case}: gain" for case in cases), "sparsity", "of dense bytes"]
    made = []
    for title, key in ways.items():
        rows = []
        for model in models:
            mine = [x for x in layers if x.model == model]
            inside = _rows(mine, key, heads, cases)
            several = inside if len(models) == 1 else _row(escape(model), mine, heads, cases, inside)
            rows.append(several)
        head = f'<div class="head">{"".join(f"<span>{escape(text)}</span>" for text in heads)}</div>'
        table = f'<div class="kinds" style="--n: {len(heads) - 1}">{head}{"".join(rows)}</div>'
        long = " long" * (len({(x.model, key(x)) for x in layers}) > LONG)
        made.append(f'<h3>{title}</h3><div class="scroll{long}">{table}</div>')
    return Html("".join(made))


def _rows(
    layers: Sequence[LayerFacts], key: Callable[[LayerFacts], tuple[str, str]], heads: list[str], cases: Sequence[str]
) -> str:
    found: dict[tuple[str, str], list[LayerFacts]] = {}
    for x in layers:
        found.setdefault(key(x), []).append(x)
    rows = []
    for (name, more), same in found.items():
        inside = "".join(f"<li>{_cells(escape(x.name), heads, '', *_figures([x], cases))}</li>" for x in same)
        rows.append(_row(f"{escape(name)} <small>{escape(more)}</small>", same, heads, cases, f"<ul>{inside}</ul>"))
    return "".join(rows)


def _row(name: str, same: Sequence[LayerFacts], heads: list[str], cases: Sequence[str], inside: str) -> str:
    """A group that opens."""
    summary = _cells(name, heads, str(len(same)), *_figures(same, cases))
    return f"<details><summary>{summary}</summary>{inside}</details>"


def _cells(first: str, heads: list[str], *figures: str) -> str:
    """A name and its figures; each figure has its title, which a phone shows above it."""
    named = zip(heads[1:], figures, strict=True)
    return f"<span>{first}</span>" + "".join(f'<span class="n" data-t="{escape(h)}">{f}</span>' for h, f in named)


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
