"""The output of commands: notes while they work, tables, and one line if they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console


class BadInput(click.ClickException):
    """Bad input: one line explains it, the exit code is 2, and nothing is written."""

    exit_code = 2


@contextmanager
def failing_plainly(command: str) -> Iterator[None]:
    """Turn errors that a user can fix into one line; anything else is a bug and keeps its traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        fix = "pip install 'gossamer[demo]'" if command == "demo" else f"pip install {error.name}"
        raise click.ClickException(f"{command} needs {error.name}: {fix}") from error
    except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise BadInput(_text(error)) from error
    except (NotImplementedError, OSError, ImportError) as error:
        raise click.ClickException(_text(error)) from error


def _text(error: Exception) -> str:
    """The message of an error, without the system's error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def note(what: str) -> None:
    """Print what is being done to standard error, so that results can be piped."""
    click.echo(f"{what} ...", err=True)


def console() -> Console:
    """Return where tables go: as wide as the terminal, or 160 columns in a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)
