"""Benchmarks: comparisons with the usual alternatives. ``gossamer bench cpu`` needs no clone.

A suite is a module with ``run(quick: bool) -> dict``: lists of flat rows, and figures by name. It may have
``tables(results)`` for its own tables. Suites are here, or in ``benchmarks/`` of a clone, which is also part of the
wheel as ``bench/clone/benchmarks``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

SUITES = {
    "cpu": "sparse layers on the CPU against dense torch, torch CSR and scipy",
    "gpu": "sparse layers on the GPU against dense torch and what torch offers",
    "compiler": "compiled einsums against torch and scipy",
    "training": "methods of sparse training on real data: accuracy by sparsity",
    "pruning": "methods of pruning: what they keep without training, and how long they take",
    "lm": "methods of sparse training on a language model of your text: bits per byte",
}
_ROOTS = (Path(__file__).parents[4], Path(__file__).parent / "clone")


def suite(name: str) -> ModuleType:
    """Return a suite by its name.

    Examples
    --------
    >>> suite("cpu").__name__
    'gossamer.app.bench.cpu'
    """
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    if importlib.util.find_spec(f"gossamer.app.bench.{name}") is not None:
        return importlib.import_module(f"gossamer.app.bench.{name}")
    for root in _ROOTS:
        if (root / "benchmarks" / f"{name}.py").exists():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module(f"benchmarks.{name}")
    raise NotImplementedError(
        f"this build of gossamer carries no suite {name!r}; a clone has it in benchmarks/{name}.py"
    )


def run(name: str, quick: bool = True, text: str | None = None) -> dict[str, Any]:
    """Measure: a minute or two if `quick`, else everything that the docs show; "lm" uses your own text."""
    if text is not None and name != "lm":
        raise ValueError(f"the suite {name!r} reads no text; lm does")
    if name == "gpu" and not _has_gpu():
        raise NotImplementedError("the suite 'gpu' needs a CUDA GPU, and torch sees none; gossamer doctor says more")
    results = suite(name).run(quick, **({} if text is None else {"text": text}))
    if not isinstance(results, dict):
        raise TypeError(f"run of suite {name!r} must return a dict, not {type(results).__name__}")
    return results


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def tables(name: str, results: dict[str, Any]) -> Iterable[Any]:
    """Yield the results as rich tables: those of the suite, or one for each list of rows."""
    own = getattr(suite(name), "tables", None)
    if own is not None:
        yield from own(results)
        return
    from gossamer.app.bench.show import tables_of

    yield from tables_of(results)


__all__ = ["SUITES", "run", "suite", "tables"]
