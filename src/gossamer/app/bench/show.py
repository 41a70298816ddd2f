"""Results as tables: any list of rows, any figures by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table


def tables_of(results: Mapping[str, Any], title: str = "") -> Iterator[Table]:
    """Yield a table for each list of rows and for the figures at each level.

    Examples
    --------
    >>> rows = [{"name": "dense", "us": 10.0}, {"name": "CSR", "us": 2.5, "gain": 4.0}]
    >>> [(t.title, t.row_count, len(t.columns)) for t in tables_of({"linear": rows, "isa": "avx2"})]
    [(None, 1, 2), ('linear', 2, 3)]
    """
    figures = {k: v for k, v in results.items() if not isinstance(v, list | tuple | Mapping) and "\n" not in str(v)}
    if figures:
        table = Table("", "", title=title or None, title_justify="left", show_header=False)
        for name, value in figures.items():
            table.add_row(str(name), shown(value))
        yield table
    for name, value in results.items():
        where = f"{title} {name}".strip()
        if isinstance(value, Mapping):
            yield from tables_of(value, where)
        elif isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value):
            yield rows_of(where, list(value))


def rows_of(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as a table; a column for each name that occurs."""
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        numbers = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(str(column), justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(shown(row.get(column)) for column in columns))
    return table


def shown(value: Any) -> str:
    """Return a value as text: floats with four digits."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return (" x " if all(isinstance(v, int) for v in value) else ", ").join(map(shown, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
