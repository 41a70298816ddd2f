"""gs.deploy: one compiled file of a model, checked against the model."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from gossamer.models.deploy.attention import replace_attention
from gossamer.models.deploy.compare import difference
from gossamer.models.deploy.graph import fuse
from gossamer.models.deploy.inputs import Call, as_call, check_free, free, inputs_of
from gossamer.models.deploy.passing import pass_bytes
from gossamer.models.serve import KEY, Served, load, processor

#: Largest relative error of an output: by default; with weights in half precision; and where activations are rounded to
#: eight bits, where a sum in another order moves some of them by a whole step.
_TOLERANCE, _TOLERANCE_HALF, _TOLERANCE_INT8 = 1e-3, 0.03, 0.1


class DeployError(RuntimeError):
    """A model can't be exported or compiled, or the compiled model's results differ."""


def deploy(
    model: nn.Module,
    example_inputs: Any,
    path: str | Path,
    *,
    dynamic: Sequence[int] = (),
    tolerance: float | None = None,
) -> Served:
    """Compile a model into one file that runs without Python between the layers, and check it.

    torch.export traces the model. Activations that follow our products are fused into them, and int8 layers that read
    the same input become one. inductor fuses and compiles the rest, and AOTInductor packs code and weights. Before the
    file is written, the result is called on the example and compared with the model. If anything fails, no file is
    written and an existing one is unchanged.

    Parameters
    ----------
    model
        A model on a CPU: dense, packed (:func:`gossamer.pack_`), in eight bits (:func:`gossamer.quantize_`), or a
        mixture. It is not changed, and is exported in ``eval()`` mode.
    example_inputs
        The arguments of a call: a tensor, a tuple of positional or a dict of keyword arguments. The file accepts
        tensors with these types and sizes.
    path
        Of the file, ``*.pt2``.
    dynamic
        Dimensions of the inputs whose sizes may vary: ``(0,)`` for any batch size, ``(0, 1)`` for any batch size and
        length. The example must have size 2 or more there.
    tolerance
        Largest relative error of an output, by 2-norms; 0.001 by default, 0.03 if weights are in half precision, 0.1
        if activations are in eight bits.

    Returns
    -------
    Served
        The loaded file, which is called like the model.

    Raises
    ------
    DeployError
        The model can't be exported or compiled, has operators that run in Python, or the compiled model's results
        differ.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    >>> served = gs.deploy(model, torch.ones(2, 8), "/tmp/model.pt2")  # doctest: +SKIP
    >>> gs.serve.load("/tmp/model.pt2")(torch.ones(2, 8)).shape  # doctest: +SKIP
    torch.Size([2, 8])
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"path={str(path)!r} must end in .pt2")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent}")
    call = as_call(example_inputs)
    check_free(call, dynamic)
    _require_cpu(model)
    _require_compiler()
    with _evaluating(model), torch.no_grad(), _quiet():
        plain = _Plain(model)
        expected = plain(*call.args, **call.kwargs)
        program = _exported(plain, call, dynamic)
        ours = _operators(program)
        about = {
            "inputs": [each.to_json() for each in inputs_of(call, dynamic)],
            "keywords": list(call.kwargs),
            "kernels": sorted(ours),
            "processor": processor(),
        }
        if tolerance is None:
            tolerance = _usual_tolerance(model, ours)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            made = _compiled(program, Path(folder) / path.name, about)
            error = difference(load(made)(*call.args, **call.kwargs), expected)
            if not error <= tolerance:
                differs = f"differs from the model by {error:.2g}, more than {tolerance:.2g}"
                raise DeployError(f"the compiled model {differs}: nothing was written")
            os.replace(made, path)
    return load(path)


def _usual_tolerance(model: nn.Module, kernels: Collection[str]) -> float:
    """Return how much a compiled model may differ: inductor rounds less often than a model in half precision does."""
    if any(name.startswith("int8_") for name in kernels):
        return _TOLERANCE_INT8
    half = any(each.dtype in (torch.bfloat16, torch.float16) for each in model.parameters())
    return _TOLERANCE_HALF if half else _TOLERANCE


class _Plain(nn.Module):
    """The model, with results of types that every process knows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _plain(self.model(*args, **kwargs))


def _plain(result: Any) -> Any:
    if isinstance(result, Mapping):
        return {str(name): _plain(value) for name, value in result.items()}
    if is_dataclass(result):
        return {f.name: _plain(getattr(result, f.name)) for f in fields(result)}
    if isinstance(result, (tuple, list)):
        return tuple(_plain(value) for value in result)
    return result


def _exported(plain: nn.Module, call: Call, dynamic: Sequence[int]) -> ExportedProgram:
    """The graph, fused."""

    def export(module: nn.Module) -> ExportedProgram:
        return torch.export.export(module, *call, dynamic_shapes=free(module, call, dynamic))

    try:
        graph = export(plain).module(check_guards=False)
        fuse(graph)
        replace_attention(graph)
        pass_bytes(graph)
        return export(graph).run_decompositions()
    except Exception as error:
        raise DeployError(f"{type(plain.model).__name__} can't be exported by torch.export: {error}") from error


def _operators(program: ExportedProgram) -> set[str]:
    """The operators of ours in the graph. Any that runs in Python is refused: the file is to run without."""
    found = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    names = {target._schema.name.partition("::") for target in found if target.namespace not in ("aten", "prims")}
    python = [f"{space}::{name}" for space, _, name in names if _runs_in_python(space, name)]
    if python:
        what = ", ".join(sorted(python))
        raise DeployError(f"these operators run in Python: {what}. Sparse layers need gs.pack_ first")
    return {name for space, _, name in names if space == "gossamer"}


def _runs_in_python(space: str, name: str) -> bool:
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    return any(f"{space}/{name}/{key}" in torch.library._impls for key in keys)


def _compiled(program: ExportedProgram, path: Path, about: dict[str, Any]) -> Path:
    try:
        options = {"aot_inductor.metadata": {KEY: json.dumps(about)}}
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    except Exception as error:
        raise DeployError(f"AOTInductor can't compile the model: {error}") from error
    return path


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise DeployError("gs.deploy needs a C++ compiler: install g++ or clang++, or name one in $CXX") from error


def _require_cpu(model: nn.Module) -> None:
    elsewhere = {str(t.device) for t in (*model.parameters(), *model.buffers()) if t.device.type != "cpu"}
    if elsewhere:
        raise NotImplementedError(f"gs.deploy is for models on a CPU; this one is on {', '.join(sorted(elsewhere))}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns of its own deprecated parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
