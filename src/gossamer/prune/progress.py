"""A progress bar that shows the layer at hand and what it lost; silent when nobody watches a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tell = Callable[[str, float | None, int], None]
"""(what is being done, its loss if known, steps finished by it)."""


@contextmanager
def progress(title: str, total: int, show: bool | None) -> Iterator[Tell]:
    """Show a bar of `total` steps; None: if standard error is a terminal."""
    console = Console(stderr=True)
    visible = console.is_terminal if show is None else show
    if not visible:
        yield lambda what, loss, steps: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, TextColumn("[dim]{task.fields[loss]}"), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, loss="")

        def tell(what: str, loss: float | None, steps: int) -> None:
            shown = "" if loss is None else f"{what}: error {loss:.4f}"
            bar.update(task, advance=steps, description=f"{title} {what}", loss=shown or bar.tasks[0].fields["loss"])

        yield tell
