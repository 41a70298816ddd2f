"""Activations by name: the outputs of modules, and of the operators that run inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gossamer.core.facts import METADATA
from gossamer.core.table import operator_of
from gossamer.models.names import matching
from gossamer.ops.sparsified import Output, with_gradient


def format_output(out: Any, spec: Output, gradient: bool) -> Any:
    """Take the output of a module (a tensor, or the first of a tuple) through a format, or let its gradient be."""
    if isinstance(out, Tensor):
        if not out.is_floating_point():
            return out
        return with_gradient(out, spec) if gradient else spec.apply(out)
    if isinstance(out, (tuple, list)) and out:
        return type(out)((format_output(out[0], spec, gradient), *out[1:]))
    raise TypeError(f"a module's output must be a tensor or a tuple that starts with one, not {type(out).__name__}")


@dataclass(frozen=True)
class FormatOutput:
    """A forward hook that takes the output of a module through a format; it is copied and pickled with the module."""

    spec: Output
    gradient: bool

    def __call__(self, module: nn.Module, args: Any, out: Any) -> Any:
        return format_output(out, self.spec, self.gradient)


class _Named(TorchFunctionMode):
    """Numbers the operators that run while it is on: add, add_1, ..."""

    def __init__(self, seen: Callable[[str, Any], Any]) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.names: list[str] = []
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = operator_of(func).name
        if name in METADATA or not isinstance(out, Tensor) or name.endswith((".get", ".set")):
            return out
        number = self.counts[name]
        self.counts[name] += 1
        self.names.append(name if number == 0 else f"{name}_{number}")
        return self.seen(self.names[-1], out)


class OperatorFormats:
    """The operators inside one module whose outputs are made sparse."""

    def __init__(self) -> None:
        self.specs: dict[tuple[str, bool], Output] = {}
        self.running: list[_Named] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"specs": self.specs, "running": []}

    @staticmethod
    def of(module: nn.Module) -> OperatorFormats:
        """Return the one of a module, made when first asked for."""
        own = module.__dict__.get("_gossamer_formats")
        if own is None:
            own = OperatorFormats()
            object.__setattr__(module, "_gossamer_formats", own)
            module.register_forward_pre_hook(own.enter)
            module.register_forward_hook(own.leave, always_call=True)
        return own

    def add(self, operator: str, spec: Output, gradient: bool) -> None:
        """Make one operator's output, or its gradient, sparse."""
        self.specs[operator, gradient] = spec

    def enter(self, module: nn.Module, args: Any) -> None:
        """Start watching, before the module runs."""
        mode = _Named(self._format)
        self.running.append(mode)
        mode.__enter__()

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        """Stop watching, also when the module failed; a name that no operator had is an error."""
        mode = self.running.pop()
        mode.__exit__(None, None, None)
        for name, _ in self.specs if out is not None else ():
            matching(name, mode.names, f"operator in {type(module).__name__}")

    def _format(self, name: str, out: Tensor) -> Tensor:
        if (name, False) in self.specs:
            out = self.specs[name, False].apply(out)
        if (name, True) in self.specs:
            out = with_gradient(out, self.specs[name, True])
        return out


def record_names(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Run a model once and list its modules, the operators inside them, and those of the model itself (":add")."""
    names: list[str] = []
    handles: list[Any] = []
    modes: list[_Named] = []

    def watch(path: str, module: nn.Module) -> None:
        def seen(name: str, out: Tensor) -> Tensor:
            if path or len(modes) == 1:  # of the model itself, those that run in none of its modules
                names.append(f"{path}:{name}")
            return out

        def enter(_module: nn.Module, _args: Any) -> None:
            if path:
                names.append(path)
            modes.append(_Named(seen))
            modes[-1].__enter__()

        def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
            modes.pop().__exit__(None, None, None)

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave, always_call=True))

    for path, module in model.named_modules():
        watch(path, module)
    try:
        with torch.no_grad():
            model(*inputs, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(names))
