"""Progress of long work: a bar on a terminal; elsewhere nothing, or lines where the command line asks for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

Tell = Callable[[str, float | None, int], None]
"""(what is being done, its loss if known, steps finished by it)."""

in_lines: ContextVar[bool] = ContextVar("in_lines", default=False)
"""Print progress as lines if standard error is not a terminal. The command line sets it; a library prints nothing."""

SHORTEST, LONGEST = 2.0, 30.0  # seconds between two lines: a tenth of the time so far, within these limits


@contextmanager
def progress(title: str, total: int, show: bool | None = None) -> Iterator[Tell]:
    """Show a bar of `total` steps on standard error; None: if that is a terminal.

    Examples
    --------
    >>> with progress("counting", 3, show=False) as tell:
    ...     for number in "one", "two", "three":
    ...         tell(number, None, 1)
    """
    from rich.console import Console  # rich takes as long to import as all of gossamer

    console = Console(stderr=True)
    visible = console.is_terminal if show is None else show
    if not visible:
        yield _lines(title, total) if show is None and in_lines.get() else lambda what, loss, steps: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
    with Progress(*columns, TextColumn("[dim]{task.fields[loss]}"), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, loss="")

        def tell(what: str, loss: float | None, steps: int) -> None:
            shown = "" if loss is None else f"{what}: error {loss:.4f}"
            bar.update(task, advance=steps, description=f"{title} {what}", loss=shown or bar.tasks[0].fields["loss"])

        yield tell


def _lines(title: str, total: int) -> Tell:
    """A line now and then, for a pipe or a log file."""
    start = time.monotonic()
    due, done = start + SHORTEST, 0

    def tell(what: str, loss: float | None, steps: int) -> None:
        nonlocal due, done
        now = time.monotonic()
        done += steps
        if now >= due:
            print(f"{title} {done} of {total}, {now - start:.0f} s: {what}", file=sys.stderr, flush=True)
            due = now + min(LONGEST, max(SHORTEST, (now - start) / 10))

    return tell


def watched(title: str, items: Collection[tuple[str, Item]], show: bool | None = None) -> Iterator[tuple[str, Item]]:
    """Yield named items to work on, with a bar that shows the name of the current one.

    Examples
    --------
    >>> [name for name, _ in watched("packing", {"fc.weight": 1}.items())]
    ['fc.weight']
    """
    with progress(title, len(items), show) as tell:
        for name, item in items:
            tell(name, None, 0)
            yield name, item
            tell(name, None, 1)
