"""A progress bar that shows what is at hand; silent when nobody watches a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

Tell = Callable[[str, float | None, int], None]
"""(what is being done, its loss if known, steps finished by it)."""


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
        yield lambda what, loss, steps: None
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


def watched(title: str, items: Collection[tuple[str, Item]], show: bool | None = None) -> Iterator[tuple[str, Item]]:
    """Yield named things to work on, with a bar that shows the name of the one at hand.

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
