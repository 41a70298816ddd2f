"""The examples of pack_: calls of a model, the inputs of each layer in them, and the time of the model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gossamer.models.int8_conv import DynamicInt8Conv
from gossamer.models.pack import truth
from gossamer.models.pack.experts import has_experts, routed
from gossamer.models.pack.layers import OF_IMAGES
from gossamer.models.pack.turns import usual_time

_SECONDS = 0.2  # to spend on one example
_RUNS = (3, 20)  # of one example: at least, unless one takes longer than that, and at most

#: How often a layer is called with inputs of a shape, by the weights of the examples.
Shapes = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Example:
    """What a model is called with, and how much that call counts."""

    inputs: Any
    weight: float = 1.0

    @property
    def text(self) -> str:
        """The shapes of its tensors.

        Examples
        --------
        >>> import torch
        >>> Example({"input_ids": torch.ones(4, 16), "attention_mask": torch.ones(4, 16)}).text
        '4 x 16, 4 x 16'
        """
        shapes = (leaf.shape for leaf in tree_leaves(_plain(self.inputs)) if isinstance(leaf, Tensor))
        return ", ".join(" x ".join(map(str, shape)) or "scalar" for shape in shapes)

    def run(self, model: nn.Module) -> Any:
        """Call the model."""
        if isinstance(self.inputs, Mapping):
            return model(**self.inputs)
        return model(*self.inputs) if isinstance(self.inputs, tuple) else model(self.inputs)

    def fresh(self) -> Example:
        """Return one whose objects other than tensors are copies: a call adds to a cache of keys and values."""
        if all(isinstance(leaf, Tensor | int | float | str | None) for leaf in tree_leaves(_plain(self.inputs))):
            return self
        return Example(copy.deepcopy(self.inputs), self.weight)


def _plain(inputs: Any) -> Any:
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def examples_of(given: Any) -> tuple[Example, ...]:
    """Return the examples that someone gave: one, or a list of them, each alone or with its weight.

    Examples
    --------
    >>> [(example.inputs, example.weight) for example in examples_of(["a", ("b", 10)])]
    [('a', 1.0), ('b', 10)]
    """
    if given is None:
        return ()
    if not isinstance(given, list):
        return (Example(given),)
    if not given:
        raise ValueError("example_inputs is an empty list: pass at least one example, or None")
    return tuple(_weighted(each) for each in given)


def _weighted(each: Any) -> Example:
    if isinstance(each, list):
        raise TypeError(
            "an example in a list of them is a tensor, a tuple of positional or a dict of keyword arguments, not a "
            "list: write a tuple"
        )
    if not (isinstance(each, tuple) and len(each) == 2 and type(each[1]) in (int, float)):
        return Example(each)
    if not (each[1] > 0 and math.isfinite(each[1])):
        raise ValueError(f"the weight of an example is a positive number, not {each[1]}")
    return Example(*each)


def shapes_of(model: nn.Module, examples: Sequence[Example], places: dict[str, list[nn.Module]]) -> dict[str, Shapes]:
    """Return the shapes that each layer sees, and how often, in one call of the model with each example."""
    found: dict[str, Shapes] = {}
    with evaluating(model):
        for example in examples:
            with _watching(places, example.weight, found):
                example.fresh().run(model)
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No gradients, and each module in evaluation mode: dropout draws nothing, batch norm learns nothing."""
    training = {m: m.training for m in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def _watching(places: dict[str, list[nn.Module]], weight: float, found: dict[str, Shapes]) -> Iterator[None]:
    hooks = []
    for name, modules in places.items():

        def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], name: str = name) -> None:
            seen = found.setdefault(name, {})
            for shape in _shapes_seen(module, (*args, *options.values())):
                seen[shape] = seen.get(shape, 0.0) + weight

        hooks += [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _shapes_seen(module: nn.Module, args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Shapes that a layer multiplies in one call; of experts, one for each that gets tokens."""
    x = args[0] if args else None
    if not isinstance(x, Tensor):
        return []  # the layer says itself what is wrong with it
    if has_experts(module):
        return [(count, x.shape[-1]) for count in routed(module, args)]
    if isinstance(module, (*OF_IMAGES, DynamicInt8Conv)) or x.dim() == 1:
        return [tuple(x.shape)]
    return [tuple(x.flatten(0, -2).shape)]


def model_seconds(model: nn.Module, example: Example, busy: bool = False) -> float:
    """Return the seconds of one call of a model, with its results there: the mean of the fastest quarter of some.

    On a busy machine (:func:`gossamer.models.pack.truth.disturbed`) that is the CPU time of one thread.
    """
    times: list[float] = []
    with evaluating(model), truth.one_thread() if busy else nullcontext():
        _timed(model, example)  # what is built or allocated by the first call doesn't count
        while len(times) < _RUNS[1] and (
            sum(times) < _SECONDS or (len(times) < _RUNS[0] and sum(times) < 10 * _SECONDS)
        ):
            times.append(_timed(model, example))
    return usual_time(times)


def _timed(model: nn.Module, example: Example) -> float:
    example = example.fresh()
    clock = time.perf_counter if torch.cuda.is_initialized() else truth.clock()
    _wait()
    start = clock()
    example.run(model)
    _wait()
    return clock() - start


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
