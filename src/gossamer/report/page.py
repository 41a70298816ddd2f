"""One self-contained HTML page: sortable tables, figures, light and dark mode. It is independent of models."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
LONG = 12  # rows, above which a table has a field to filter them
#: The browser itself refuses whatever a page might want from elsewhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Html(str):
    """Text that is already HTML; all other text is escaped."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, and how a value is shown.

    Examples
    --------
    >>> Column("sparsity", "{:.1%}".format).cell(0.875)
    '<td class="n" data-v="0.875">87.5%</td>'
    """

    title: str
    show: Callable[[Any], str] | None = None
    kind: str = "n"  # "n": a number; "code", "text", "": words
    tone: Callable[[Any], str] | None = None  # "good", "bad" or "" for a value

    def cell(self, value: Any) -> str:
        """Return a cell; None is shown as a dash."""
        if value is None:
            return f'<td class="{self.kind}" data-v="">–</td>'
        text = str(value) if self.show is None else self.show(value)
        tone = self.tone(value) if self.tone else ""
        names = f"{self.kind} {tone}".strip()
        return f'<td class="{names}" data-v="{escape(str(value))}">{escape(text)}</td>'


def table(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table that can be sorted by clicking a column title.

    Examples
    --------
    >>> table([Column("layer", kind="")], [["fc"]])
    '<div class="scroll"><table class="sorts"><thead><tr><th class="" scope="col"><button type="button">layer...'
    """
    heads = "".join(
        f'<th class="{"n" * (c.kind == "n")}" scope="col"><button type="button">{escape(c.title)}</button></th>'
        for c in columns
    )
    lines = ("".join(c.cell(v) for c, v in zip(columns, row, strict=True)) for row in rows)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    many = body.count("<tr>") > LONG
    search = '<input type="search" class="filter" placeholder="filter by name, format ..." aria-label="filter">'
    box = f'{search}<div class="scroll long">' if many else '<div class="scroll">'
    return Html(f'{box}<table class="sorts"><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>')


def tiles(figures: Iterable[tuple[str, str]]) -> Html:
    """Return the most important figures, each with a label."""
    made = (f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in figures)
    return Html(f'<div class="tiles">{"".join(made)}</div>')


def figure(title: str, drawing: Html, caption: str = "", names: Sequence[str] = ()) -> Html:
    """Return a drawing with its title, and a legend of the series by name."""
    legend = "".join(f'<li><i class="k{i % 6}"></i>{escape(name)}</li>' for i, name in enumerate(names))
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Html(f"<figure><h3>{escape(title)}</h3>{drawing}{legend}{below}</figure>")


def group(parts: Iterable[Html], kind: str = "charts") -> Html:
    """Return figures side by side if there is space."""
    return Html(f'<div class="{kind}">{"".join(parts)}</div>')


@dataclass(frozen=True)
class Section:
    """A heading, a sentence, and the content."""

    title: str
    text: str
    body: Html

    def html(self) -> str:
        """Return the section."""
        text = f'<p class="soft">{escape(self.text)}</p>' if self.text else ""
        return f"<section><h2>{escape(self.title)}</h2>{text}{self.body}</section>"


@dataclass(frozen=True)
class Page:
    """A page; ``save`` it.

    Examples
    --------
    >>> page = Page("Digits", "on two cores", (Section("Layers", "", table([Column("layer", kind="")], [["a < b"]])),))
    >>> "a &lt; b" in page.html(), "https://" in page.html()
    (True, False)
    """

    title: str
    text: str
    sections: tuple[Section, ...]
    lead: str = ""  # HTML

    def html(self) -> str:
        """Return the whole page as text."""
        style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        title, parts = escape(self.title), "\n".join(section.html() for section in self.sections)
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
<header><h1>{title}</h1><p class="soft">{escape(self.text)}</p>{self.lead}</header>
{parts}
</main>
<script>
{script}</script>
</body>
</html>
"""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; an existing file is replaced atomically."""
        return write_whole(path, self.html())


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file atomically: it is always either the old or the new one, even if this process is killed.

    Examples
    --------
    >>> import tempfile
    >>> write_whole(Path(tempfile.mkdtemp()) / "page.html", "whole").read_text()
    'whole'
    """
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"can't write {target}: there is no folder {target.parent}; make it first")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:  # it names the temporary file, which means nothing to the caller
        raise OSError(error.errno, error.strerror, str(target)) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:  # Ctrl-C too: leave nothing behind
        Path(name).unlink(missing_ok=True)
        raise
    return target


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now
