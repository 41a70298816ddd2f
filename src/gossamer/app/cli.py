"""The command `gossamer`.

torch takes more than a second to import, so nothing here imports it before a command needs it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130  # what a shell makes of SIGINT

#: As gossamer.app.bench has them; importing it imports torch.
SUITES = ["cpu", "gpu", "compiler", "training", "pruning", "lm"]


class Commands(click.Group):
    """The group of commands: Ctrl-C ends any of them quietly."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nstopped; files are as they were, or whole", err=True)
            ctx.exit(INTERRUPTED)


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 it failed, 2 wrong usage, 130 stopped by Ctrl-C.",
)
@click.version_option(package_name="gossamer", prog_name="gossamer")
def main() -> None:
    """Sparsity in PyTorch, made ordinary.

    \b
    Examples:
      gossamer demo                    the whole story: train, sparsify, pack, measure, report
      gossamer bench cpu               sparse layers against dense torch, torch CSR and scipy
      gossamer inspect m.safetensors   what is in a saved model
      gossamer report m.safetensors    a page about a saved model
      gossamer doctor                  what this machine offers, and what is missing
    \b
    Completion, for bash (zsh, fish: the same with their names):
      eval "$(gossamer completion bash)"
    """


@main.command(short_help="The whole story: train, sparsify, pack, measure, report.")
@click.option("--report", "path", default="gossamer-report.html", show_default=True, help="Where to write the page.")
@as_json_option
def demo(path: str, as_json: bool) -> None:
    """Run the whole story in under two minutes on two cores, with no download.

    Trains a small model on real data, makes it sparse in three ways, packs it, measures dense against sparse, and
    writes a page about it. Every figure is measured in that run.

    \b
    Examples:
      gossamer demo
      gossamer demo --report digits.html
      gossamer demo --json | jq '.rows[].gain'
    """
    with failing_plainly("demo"):
        story = importlib.import_module("gossamer.app.demo")
        rows = story.run(path)
    if as_json:
        click.echo(json.dumps({"rows": story.plain(rows), "report": path}, indent=2))
        return
    console = _console()
    console.print(story.table(rows))
    console.print(f"{path}: layers, masks, roofline, curves", highlight=False)


@main.command(short_help="Tables against what you would use instead.")
@click.argument("suite", type=click.Choice(SUITES), required=False)
@click.option("--full", is_flag=True, help="The grid that the docs publish: many minutes.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the results as JSON, too.")
@click.option("--text", type=click.Path(exists=True, dir_okay=False), help="What lm trains on: any file of text.")
@as_json_option
def bench(suite: str | None, full: bool, out: str | None, text: str | None, as_json: bool) -> None:
    """Measure against what you would use instead; a minute or two without --full.

    \b
    cpu        sparse layers against dense torch, torch CSR and scipy
    gpu        sparse layers on the GPU
    compiler   compiled einsums against torch and scipy
    training   methods of sparse training: accuracy by sparsity
    pruning    methods of pruning: what they keep, and how long they take
    lm         methods of sparse training on a language model of your text

    \b
    Examples:
      gossamer bench cpu
      gossamer bench training --json > training.json
      gossamer bench cpu --full --out cpu.json
      gossamer bench lm --text book.txt
    """
    name = suite or "cpu"
    with failing_plainly("bench"):
        room = importlib.import_module("gossamer.app.bench")
        results = room.run(name, quick=not full, text=text)
        found = json.dumps(results, indent=2, default=str)
        if out:
            importlib.import_module("gossamer.report.page").write_whole(out, found + "\n")
    if as_json:
        click.echo(found)
        return
    console = _console()
    for table in room.tables(name, results):
        console.print(table)


@main.command(short_help="What is in a saved model.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@as_json_option
def inspect(file: str, as_json: bool) -> None:
    """Show what is in a saved model: every tensor, its format, sparsity and bytes.

    All of the file is read and checked on the way.

    \b
    Examples:
      gossamer inspect model.safetensors
      gossamer inspect model.safetensors --json | jq '.total.sparsity'
    """
    from gossamer.app.inspecting import found_in, table

    with failing_plainly("inspect"):
        found = found_in(file)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _console().print(table(found))


@main.command(short_help="One HTML page about a saved model.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--out", default="gossamer-report.html", show_default=True, help="Where to write the page.")
@click.option("--tokens", type=int, multiple=True, default=(1, 256), show_default=True, help="May be given again.")
@click.option("--no-times", is_flag=True, help="Don't measure; only look.")
@as_json_option
def report(file: str, out: str, tokens: tuple[int, ...], no_times: bool, as_json: bool) -> None:
    """Write one HTML page about a saved model: layers, masks, times, roofline.

    FILE is of gs.save, or any safetensors file. In Python, gs.report(model, path) knows more: training curves, churn,
    accuracy.

    \b
    Examples:
      gossamer report model.safetensors
      gossamer report model.safetensors --out page.html --tokens 1 --tokens 64
    """
    from gossamer.app.inspecting import tensors_in

    with failing_plainly("report"):
        make = importlib.import_module("gossamer.report").report
        found = make(tensors_in(file), out, tokens=tokens, title=file, measure=not no_times)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    console = _console()
    console.print(found.table())
    console.print(out, highlight=False)


@main.command(short_help="What this machine offers, and what is missing.")
@as_json_option
def doctor(as_json: bool) -> None:
    """Show what this machine offers, what is missing, and the command that puts it right.

    Exits with 1 if something that gossamer's speed depends on is missing.

    \b
    Examples:
      gossamer doctor
      gossamer doctor --json | jq .cpu.isa
    """
    room = importlib.import_module("gossamer.app.doctor")
    facts = room.examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        console = _console()
        console.print(room.table(facts))
        console.print()
        console.print(room.advice(facts))
    if any(finding["serious"] for finding in facts["findings"]):
        sys.exit(1)


@main.command(short_help="Let a shell complete commands and options.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete gossamer's commands and options.

    \b
    Examples:
      eval "$(gossamer completion bash)"              in ~/.bashrc
      eval "$(gossamer completion zsh)"               in ~/.zshrc
      gossamer completion fish > ~/.config/fish/completions/gossamer.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "gossamer", "_GOSSAMER_COMPLETE").source())


@contextmanager
def failing_plainly(command: str) -> Iterator[None]:
    """Turn what a user can put right into one line; anything else is a bug, and keeps its traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = {"sklearn": "demo"}.get(error.name or "")
        fix = f"pip install 'gossamer[{extra}]'" if extra else f"pip install {error.name}"
        raise click.ClickException(f"{command} needs {error.name}: {fix}") from error
    except (ValueError, NotImplementedError, OSError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 130)


if __name__ == "__main__":
    main()
