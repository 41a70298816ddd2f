"""Malformed tensors: how many are refused, how many accepted, and does any crash or read wrongly?

    python benchmarks/malformed.py [--count N] [--seed N] [--out FILE]

Tensors of every exported format are drawn (``tests/formats/_generate.py``) and given to every public entry: from raw
arrays, a pickle by ``torch.load(weights_only=True)``, a file with correct digests by ``gs.io``, the ``state_dict`` of
a model, and, where there is such a thing, torch.sparse and scipy. Each must be refused by a ValueError or TypeError, or
be a tensor that all operators read alike. Files are loaded under a limit of memory: 4 times the file and 64 MB. Each
batch runs in a process of its own, so a crash is counted, too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import scipy.sparse  # noqa: E402 - after the path is set

import gossamer as gs  # noqa: E402
from gossamer.core import tensor as tensors  # noqa: E402
from tests.formats._agree import disagreement  # noqa: E402
from tests.formats._generate import FORMATS, Drawn, malformed  # noqa: E402
from tests.io.forge import signed  # noqa: E402

RESULT = HERE / "results" / "malformed.json"
COUNT, BATCH = 20_000, 500


class Pickled:
    """Saves as a SparseTensor would, with parts of our choice."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn

    def __reduce__(self) -> Any:
        d = self.drawn
        return tensors.rebuild, (repr(d.format), d.shape, d.values, d.arrays, False, False, "None")


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """Limit memory to what the process has now, 4 times a file of this size, and 64 MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 4 * size + (64 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -- entries: a function of what was drawn; None if it can't be brought to this entry


def by_arrays(drawn: Drawn, folder: Path) -> Any:
    """From raw arrays."""
    return drawn.build()


def by_pickle(drawn: Drawn, folder: Path) -> Any:
    """From a pickle, by torch's safe loader."""
    file = io.BytesIO()
    torch.save(Pickled(drawn), file)
    file.seek(0)
    with limited(len(file.getbuffer())):
        return torch.load(file, weights_only=True)


def by_file(drawn: Drawn, folder: Path) -> Any:
    """From a safetensors file whose digests agree."""
    try:
        data = signed("weight", repr(drawn.format), drawn.shape, {"values": drawn.values, **drawn.arrays}, version=2)
    except (KeyError, RuntimeError):
        return None  # there is no such type in a file
    path = folder / "forged.safetensors"
    path.write_bytes(data)
    with limited(len(data)), gs.io.File(path) as file:
        return file["weight"]


def by_state_dict(drawn: Drawn, folder: Path) -> Any:
    """From the ``state_dict`` of a layer."""
    if len(drawn.shape) != 2 or not all(0 < size <= 64 for size in drawn.shape):
        return None
    layer = torch.nn.Linear(drawn.shape[1], drawn.shape[0], bias=False)
    try:
        gs.sparsify_(layer, FORMATS[drawn.format], format=drawn.format)
    except (ValueError, NotImplementedError):
        return None  # a shape that the format can't hold
    state = layer.state_dict()
    state |= {"weight_values": drawn.values} | {f"weight_{name}": a for name, a in drawn.arrays.items()}
    layer.load_state_dict(state)
    return layer.weight.detach()


_TORCH = {gs.CSR(): torch.sparse_csr, gs.CSC(): torch.sparse_csc, gs.BSR((2, 3)): torch.sparse_bsr}


def by_torch(drawn: Drawn, folder: Path) -> Any:
    """From torch.sparse, which is asked not to check."""
    layout = _TORCH.get(drawn.format)
    if layout is None:
        return None
    try:
        parts = (drawn.arrays["pos1"], drawn.arrays["crd1"], drawn.values, drawn.shape)
        given = torch.sparse_compressed_tensor(*parts, layout=layout, check_invariants=False)
    except (RuntimeError, ValueError, TypeError):
        return None
    return gs.from_torch(given)


def by_scipy(drawn: Drawn, folder: Path) -> Any:
    """From scipy, whose arrays were exchanged."""
    maker = {gs.CSR(): scipy.sparse.csr_array, gs.CSC(): scipy.sparse.csc_array}.get(drawn.format)
    if maker is None or len(drawn.shape) != 2:
        return None
    matrix = maker((1, 1))
    try:
        matrix.indptr, matrix.indices = drawn.arrays["pos1"].numpy(), drawn.arrays["crd1"].numpy()
        matrix.data, matrix._shape = drawn.values.numpy(), drawn.shape
    except (RuntimeError, TypeError):
        return None
    return gs.from_scipy(matrix)


ENTRIES: dict[str, Callable[[Drawn, Path], Any]] = {
    "from_arrays": by_arrays, "torch.load": by_pickle, "gs.load": by_file, "load_state_dict": by_state_dict,
    "from_torch": by_torch, "from_scipy": by_scipy,
}  # fmt: skip


def judge(drawn: Drawn, entry: Callable[[Drawn, Path], Any], folder: Path) -> str:
    """Return "refused", "sound", "none" for what can't be brought to an entry, or what went wrong."""
    try:
        made = entry(drawn, folder)
    except (ValueError, TypeError):
        return "refused"
    except RuntimeError as error:  # torch's own word for a state_dict that doesn't fit
        return "refused" if "Error(s) in loading state_dict" in str(error) else f"WRONG {type(error).__name__}: {error}"
    except Exception as error:
        return f"WRONG {type(error).__name__}: {error}"
    if made is None:
        return "none"
    try:
        found = disagreement(made)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return f"WRONG {found}" if found else "sound"


def batch(seed: int, count: int) -> dict[str, Any]:
    """Judge tensors of all formats by all entries in turn; return the counts, and what went wrong."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rng, names, formats = random.Random(seed), list(ENTRIES), list(FORMATS)
    counts: collections.Counter[str] = collections.Counter()
    wrong, done, n = [], 0, 0
    with tempfile.TemporaryDirectory() as folder, gs.fallback("silent"):
        while done < count:
            format, name = formats[n % len(formats)], names[n // len(formats) % len(names)]
            n += 1
            answer = judge(malformed(rng, format), ENTRIES[name], Path(folder))
            if answer == "none":
                continue
            done += 1
            counts[f"{name} {answer.split()[0]}"] += 1
            counts[f"{format!r} {answer.split()[0]}"] += 1
            if answer.startswith("WRONG"):
                wrong.append(f"seed {seed}, number {n}, {format!r} by {name}: {answer[:300]}")
    return {"counts": dict(counts), "wrong": wrong}


def run(count: int, seed: int) -> dict[str, Any]:
    """Judge so many tensors in processes of their own; a process that ends by a signal is a crash."""
    counts: collections.Counter[str] = collections.Counter()
    wrong, crashes = [], 0
    for start in range(0, count, BATCH):
        command = [sys.executable, __file__, "--batch", str(seed + start), "--count", str(min(BATCH, count - start))]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            crashes += 1
            wrong.append(f"batch {seed + start} ended with {answer.returncode}: {answer.stderr[-500:]}")
            continue
        found = json.loads(answer.stdout.splitlines()[-1])
        counts.update(found["counts"])
        wrong += found["wrong"]
        print(f"{start + BATCH:,} drawn, {len(wrong)} wrong", flush=True)
    entries = {name: {word: counts[f"{name} {word}"] for word in ("refused", "sound", "WRONG")} for name in ENTRIES}
    formats = {repr(f): {word: counts[f"{f!r} {word}"] for word in ("refused", "sound", "WRONG")} for f in FORMATS}
    return {"tensors": count, "crashes": crashes, "wrong": wrong, "entries": entries, "formats": formats}


def main() -> None:
    """Draw, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch is not None:
        print(json.dumps(batch(options.batch, options.count)))
        return
    found = run(options.count, options.seed)
    for name, row in found["entries"].items():
        print(f"{name:16}", *(f"{word} {count:,}" for word, count in row.items()), sep="  ")
    print(f"crashes {found['crashes']}, wrong {len(found['wrong'])}")
    options.out.write_text(json.dumps({"torch": torch.__version__, **found}, indent=1) + "\n")
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
