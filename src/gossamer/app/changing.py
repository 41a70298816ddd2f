"""The commands that read a model and write a changed one: prune, pack, quantize, export."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gossamer.app.failing import failing_plainly, note

if TYPE_CHECKING:
    from gossamer.app.opening import Opened

Command = TypeVar("Command", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)


def common(command: Command) -> Command:
    """Add the argument and the options that all of these commands have."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)
    command = click.option("--force", is_flag=True, help="Replace OUT if it exists.")(command)
    command = click.option("-o", "--out", required=True, type=click.Path(), help="Where to write the result.")(command)
    return click.argument("model", type=click.Path(exists=True))(command)


@click.command(short_help="Make a saved model sparse.")
@common
@click.option("--pattern", required=True, help='"2:4", "90%", "1:4:g8", "block 4x4 80%", "64:2:8" ...')
@click.option(
    "--calibration", type=click.Path(exists=True, dir_okay=False), help="A text file with one text on each line."
)
@click.option(
    "--method", help="sparsegpt, wanda, obs or magnitude. Default: sparsegpt with --calibration, else magnitude."
)
@click.option("--exclude", multiple=True, help="Glob of names to keep dense; may be repeated.")
@click.option("--samples", type=COUNT, default=128, show_default=True, help="Largest number of texts to use.")
@click.option("--length", type=COUNT, default=128, show_default=True, help="Largest number of tokens of a text.")
def prune(
    model: str, out: str, force: bool, as_json: bool, pattern: str, calibration: str | None, method: str | None,
    exclude: tuple[str, ...], samples: int, length: int,
) -> None:  # fmt: skip
    """Make a saved model sparse, without training, and write it to OUT.

    MODEL is a transformers folder or a safetensors file. With a text file for calibration, SparseGPT selects the
    weights and adjusts the others; without one, the largest weights are kept. Embeddings and output layers tied to
    them stay dense.

    \b
    Examples:
      gossamer prune bert/ --pattern 2:4 --calibration texts.txt -o bert-2of4/
      gossamer prune llama/ --pattern 2:4 --calibration texts.txt --exclude lm_head -o llama-2of4/
      gossamer prune model.safetensors --pattern 90% -o sparse.safetensors
    """
    with failing_plainly("prune"):
        from gossamer.patterns import as_pattern
        from gossamer.prune import oneshot
        from gossamer.prune.known import as_method

        if "*" in exclude:
            raise ValueError("--exclude '*' leaves nothing to prune")
        how = dict.fromkeys(exclude) | {"*": as_pattern(pattern)}
        method = method or ("sparsegpt" if calibration else "magnitude")
        if calibration is None and as_method(method).needs:
            raise ValueError(f"--method {method} needs --calibration FILE, a text file with one text on each line")
        opened, opening = _open(model, out, force)
        batches = None
        if calibration:
            batches = opening.batches_of(opened, calibration, samples, length)
            texts = sum(len(b["input_ids"]) for b in batches)
            note(f"calibrating on {texts} text{'s' * (texts != 1)}")
        note(f"pruning to {pattern} by {method}")
        report = oneshot(opened.model, how, batches, method=method)
        opening.save_model(opened, out)
    data = {"out": out, "method": method, "pattern": pattern, "sparsity": report.sparsity}
    _say(data | {"layers": len(report.layers)}, f"{out}: {report.taken}", as_json)


@click.command(short_help="Convert a sparse model to its fastest formats.")
@common
@click.option(
    "--tokens", type=COUNT, default=128, show_default=True, help="Tokens (rows of the input) to measure with."
)
@click.option("--no-tune", is_flag=True, help="Choose by a cost model instead of measuring.")
def pack(model: str, out: str, force: bool, as_json: bool, tokens: int, no_tune: bool) -> None:
    """Measure each sparse layer, convert it to the fastest format on this machine, and write the model to OUT.

    Where dense is faster, the layer keeps its mask. The layers of a file are measured with 1, 16 and 128 tokens.

    \b
    Examples:
      gossamer pack bert-2of4/ -o bert-packed/ --tokens 128
      gossamer pack sparse.safetensors -o packed.safetensors
    """
    import contextlib
    import io

    with failing_plainly("pack"):
        opened, opening = _open(model, out, force)
        from gossamer.app.kinds import by_kind
        from gossamer.models import pack_

        example = opened.example(opened.fitting(tokens))
        note("measuring")
        with contextlib.redirect_stdout(io.StringIO()):  # the table comes below, shorter
            report = pack_(opened.model, example, tune=not no_tune)
        if not report.layers:
            raise ValueError(f"{model} has no sparse layer: use gossamer prune first")
        opening.save_model(opened, out)
    rows = [{"name": r.name, "format": r.format, "sparsity": r.sparsity, "dense_us": r.dense_us, "us": r.us,
             "bytes": r.bytes, "dense_bytes": r.dense_bytes, "clear": r.clear} for r in report.layers]  # fmt: skip
    if as_json:
        _say({"out": out, "gain": report.gain, "layers": rows}, "", True)
        return
    from gossamer.app.failing import console

    console().print(by_kind(rows))
    click.echo(f"{out}: {report.gain:.2f}x dense, all {len(rows)} layers together")
    if not all(row["clear"] for row in rows):
        click.echo("? other programs disturbed the measurement: pack again on a quiet machine", err=True)


@click.command(short_help="Round the weights of a saved model to int8.")
@common
@click.option("--weights-only", is_flag=True, help="Keep activations in float32; only for packed layers.")
def quantize(model: str, out: str, force: bool, as_json: bool, weights_only: bool) -> None:
    """Round linear layers, dense or sparse, to int8, and write the model to OUT.

    Activations are rounded for each token while the model runs, so no calibration is needed.

    \b
    Examples:
      gossamer quantize bert-2of4/ -o bert-2of4-int8/
      gossamer quantize packed.safetensors --weights-only -o small.safetensors
    """
    with failing_plainly("quantize"):
        opened, opening = _open(model, out, force)
        from gossamer.models import quantize_

        quantize_(opened.model, "int8 weights" if weights_only else "int8")
        layers = sum("Int8" in type(module).__name__ for module in opened.model.modules())
        opening.save_model(opened, out)
    _say({"out": out, "layers": layers}, f"{out}: {layers} layers in int8", as_json)


@click.command(short_help="Write a model for programs without gossamer.")
@common
@click.option("--to", "kind", type=click.Choice(["dense", "pt2"]), default="dense", show_default=True,
              help="dense: an ordinary checkpoint; pt2: a torch.export program, only for folders.")  # fmt: skip
@click.option("--tokens", type=COUNT, default=128, show_default=True, help="Tokens of the example input for pt2.")
def export(model: str, out: str, force: bool, as_json: bool, kind: str, tokens: int) -> None:
    """Write a sparse model as an ordinary dense checkpoint, or as a torch.export program.

    \b
    Examples:
      gossamer export bert-packed/ -o bert-dense/              loads in any transformers, zeros included
      gossamer export packed.safetensors -o dense.safetensors
      gossamer export bert-packed/ --to pt2 -o bert.pt2        needs `import gossamer` where it runs
    """
    with failing_plainly("export"):
        opened, opening = _open(model, out, force, as_file=kind == "pt2")
        if kind == "dense":
            opening.save_model(opened, out, dense=True)
        else:
            _program(opened, out, tokens)
    _say({"out": out, "kind": kind}, out, as_json)


def _program(opened: Opened, out: str, tokens: int) -> None:
    import torch

    from gossamer.io.write import replacing

    example = opened.example(opened.fitting(tokens))
    if example is None:
        raise ValueError(f"{opened.path} is a file, which doesn't say how its layers connect: --to pt2 needs a folder")
    model = opened.model.requires_grad_(False)
    for module in model.modules():  # torch.export doesn't know transformers' caches, an output of decoders
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch.export copies a class that torch has deprecated
            program = torch.export.export(model, (), example, strict=False).run_decompositions()
    except RuntimeError as error:  # what torch.export can't trace
        raise NotImplementedError(f"torch.export can't trace {opened.path}: {str(error).splitlines()[0]}") from error
    with replacing(out) as file:
        torch.export.save(program, file)


def _open(model: str, out: str, force: bool, as_file: bool = False) -> tuple[Opened, Any]:
    """Open a model, after checking that the result can be written."""
    import importlib

    opening = importlib.import_module("gossamer.app.opening")
    opening.check_target(out, Path(model).is_dir() and not as_file, force)
    note(f"reading {model}")
    return opening.open_model(model), opening


def _say(data: dict[str, Any], text: str, as_json: bool) -> None:
    click.echo(json.dumps(data, indent=2) if as_json else text)
