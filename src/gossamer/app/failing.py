"""What a command says: notes while it works, tables, and one line when it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console


class BadInput(click.ClickException):
    """Something that the user gave can't be used: the message says what; exit code 2, and nothing is written."""

    exit_code = 2


@contextmanager
def failing_plainly(command: str) -> Iterator[None]:
    """Turn what a user can fix into one line; anything else is a bug, and keeps its traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = {"sklearn": "demo"}.get(error.name or "")
        fix = f"pip install 'gossamer[{extra}]'" if extra else f"pip install {error.name}"
        raise click.ClickException(f"{command} needs {error.name}: {fix}") from error
    except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(str(error)) from error
    except (NotImplementedError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def note(what: str) -> None:
    """Say what is being done, on standard error, so that results can be piped."""
    click.echo(f"{what} ...", err=True)


def console() -> Console:
    """Return where tables go: as wide as the terminal, or 130 columns in a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 130)
