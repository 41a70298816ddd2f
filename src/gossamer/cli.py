"""The command `gossamer`.

torch takes more than a second to import, so nothing here imports it before a command needs it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click

ISA = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 it failed, 2 wrong usage.",
)
@click.version_option(package_name="gossamer", prog_name="gossamer")
def main() -> None:
    """Sparsity in PyTorch, made ordinary.

    \b
    Examples:
      gossamer demo            the whole story: train, sparsify, measure
      gossamer doctor          what this machine offers
      gossamer doctor --json   the same, for a program or a bug report
    """


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(as_json: bool) -> None:
    """Show what this machine offers: ISA, compiler, GPU, caches.

    \b
    Examples:
      gossamer doctor
      gossamer doctor --json | jq .cpu.isa
    """
    facts = examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print_table(facts)


@main.command()
def demo() -> None:
    """Run the whole story in under two minutes on two cores.

    \b
    Example:
      gossamer demo
    """
    try:
        story = importlib.import_module("gossamer.demo")
    except ModuleNotFoundError as error:
        if error.name == "gossamer.demo":
            raise click.ClickException("this build of gossamer carries no demo.") from error
        if error.name == "sklearn":
            raise click.ClickException("the demo needs scikit-learn: pip install 'gossamer[demo]'") from error
        raise
    story.run()


def examine() -> dict[str, Any]:
    """Collect what `gossamer doctor` shows: plain values only, ready for JSON."""
    import torch

    return {
        "gossamer": importlib.metadata.version("gossamer"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": {
            "version": torch.__version__,
            "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "cpu": _cpu(),
        "compiler": _compiler(),
        "gpus": [_gpu(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())],
        "cache": str(cache_dir()),
    }


def cache_dir() -> Path:
    """Return where built code is kept: `$GOSSAMER_CACHE`, or `gossamer` in the user's cache folder."""
    if own := os.environ.get("GOSSAMER_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gossamer"


def _cpu() -> dict[str, Any]:
    """Return model, usable cores and instruction sets; from /proc/cpuinfo where there is one."""
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().split("\n\n", 1)[0]
        info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(info.get("flags", info.get("Features", "")).split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": info.get("model name") or platform.processor() or platform.machine(),
        "cores": cores,
        "isa": {name: name in flags for name in ISA},
    }


def _compiler() -> dict[str, str] | None:
    """Return the C compiler that would build native code: `$CC`, or the first of cc, gcc and clang."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if path := shutil.which(name):
            answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            return {"path": path, "version": (answer.stdout.splitlines() or ["unknown"])[0]}
    return None


def _gpu(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
    }


def _print_table(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    torch_, cpu, compiler = facts["torch"], facts["cpu"], facts["compiler"]
    has = [name for name, present in cpu["isa"].items() if present]
    gpus = [f"{g['name']}, {g['memory_gib']} GiB, compute {g['capability']}" for g in facts["gpus"]]
    rows = {
        "gossamer": facts["gossamer"],
        "Python": facts["python"],
        "torch": f"{torch_['version']} ({torch_['build']} build)",
        "CPU": f"{cpu['model']}, {cpu['cores']} cores",
        "ISA": " ".join(has) or "[dim]none of " + " ".join(ISA) + "[/]",
        "torch uses": f"{torch_['cpu_capability']}, {torch_['threads']} threads",
        "C compiler": f"{compiler['version']}\n[dim]{compiler['path']}[/]" if compiler else "[yellow]none found[/]",
        "GPU": "\n".join(gpus) or "[dim]none[/]",
        "cache": facts["cache"],
    }
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
