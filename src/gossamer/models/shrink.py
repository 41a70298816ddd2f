"""Removing neurons that have no effect: smaller layers with the same outputs.

A neuron is removed if its row of weights is zero, so that its output is constant, or if no later neuron reads it. A
constant other than 0 is added to the bias of the layer that reads it. The reader of a neuron must be known: this works
for layers of an nn.Sequential with element-wise modules in between, the MLPs of torch's transformer layers, and gated
MLPs such as those of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.formats import Dense
from gossamer.models.activations import is_elementwise
from gossamer.models.gated import parts_of
from gossamer.models.modules import dense_class
from gossamer.models.stored import set_data
from gossamer.models.weights import Weight, all_weights, check_model

Activation = Callable[[Tensor], Tensor]


class Pair(NamedTuple):
    """A layer whose neurons only one other layer reads. A gated one has two layers: activation(first) * second."""

    writers: tuple[nn.Linear, ...]
    activation: Activation
    reader: nn.Linear


@torch.no_grad()
def shrink_(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Remove neurons that nothing depends on, in place: those that SRigL has ablated, for instance.

    Outputs in eval mode stay the same, up to the rounding of constants that move to a bias. Weights keep their masks
    and formats. An optimizer has state of the old shapes: make it after this. In a model of transformers,
    ``config.intermediate_size`` is set to the new size if all MLPs have it, so that ``from_pretrained`` can load what
    ``save_pretrained`` writes.

    Parameters
    ----------
    model
        Any module. Layers of an ``nn.Sequential``, of torch's transformer layers and of gated MLPs shrink; all others
        are unchanged.

    Returns
    -------
    dict
        ``{name of a layer: (neurons before, neurons after)}``, of those that have shrunk.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    >>> with torch.no_grad():
    ...     model[0].weight[2:] = 0
    >>> x = torch.randn(3, 4)
    >>> before = model(x)
    >>> gs.nn.shrink_(model), model[2].weight.shape
    ({'0': (6, 2)}, torch.Size([2, 2]))
    >>> torch.allclose(model(x), before, atol=1e-6)
    True
    """
    check_model(model)
    names = {id(module): name for name, module in model.named_modules()}
    pairs = list(_pairs(model))
    before = {names[id(writer)]: writer.out_features for pair in pairs for writer in pair.writers}
    weights = {id(w.module): w for w in all_weights(model).values() if w.places[0][1] == "weight"}
    while any(_shrink(pair, weights) for pair in pairs):  # a neuron that is removed may free others
        pass
    after = {names[id(writer)]: writer.out_features for pair in pairs for writer in pair.writers}
    _tell_config(model, set(before.values()), set(after.values()))
    return {name: (before[name], after[name]) for name in before if after[name] < before[name]}


def _tell_config(model: nn.Module, before: set[int], after: set[int]) -> None:
    """Note the size of MLPs where transformers makes models from, if all have the same."""
    config = getattr(model, "config", None)
    if len(after) == 1 and before == {getattr(config, "intermediate_size", None)}:
        config.intermediate_size = next(iter(after))  # type: ignore[union-attr]


@torch.no_grad()
def without_effect(model: nn.Module) -> int:
    """Return how many neurons :func:`shrink_` would remove at first; removing these may free others.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> without_effect(gs.sparsify_(model, {"2": "all:2:8", "*": None}))
    8
    """
    weights = {id(w.module): w for w in all_weights(model).values() if w.places[0][1] == "weight"}
    own = {key for key, weight in weights.items() if not weight.foreign}
    pairs = [pair for pair in _pairs(model) if all(id(layer) in own for layer in (*pair.writers, pair.reader))]
    return sum(int(_without_effect(pair, weights)[0].sum()) for pair in pairs)


def _pairs(model: nn.Module) -> Iterator[Pair]:
    """All layers whose only reader is known."""
    times: dict[int, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        times[id(module)] = times.get(id(module), 0) + 1
    tied = {id(m) for w in all_weights(model).values() if len(w.places) > 1 for m, _ in w.places}
    inner = {id(child) for m in model.modules() if type(m) is nn.Sequential for child in m}
    for module in model.modules():
        if type(module) is nn.Sequential and id(module) not in inner:
            found = list(_in_a_row(list(_flat(module))))
        else:
            found = _in_a_block(module)
        for pair in found:
            parts = (*pair.writers, pair.reader)
            linear = all(dense_class(m) is nn.Linear for m in parts)
            if linear and all(times[id(m)] == 1 and id(m) not in tied for m in parts):
                yield pair


def _flat(module: nn.Sequential) -> Iterator[nn.Module]:
    for child in module:
        yield from _flat(child) if type(child) is nn.Sequential else (child,)


def _in_a_row(modules: list[nn.Module]) -> Iterator[Pair]:
    """Linear layers with element-wise modules between them."""
    last: Any = None
    between: list[nn.Module] = []
    for module in modules:
        if dense_class(module) is nn.Linear:
            if last is not None:
                yield Pair((last,), _one_after_another(between), module)  # type: ignore[arg-type]
            last, between = module, []
        elif is_elementwise(module):
            between.append(module)
        else:
            last = None


def _in_a_block(module: Any) -> list[Pair]:
    """The MLP of a block that is known."""
    if type(module) in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer) and is_elementwise(module.activation):
        return [Pair((module.linear1,), module.activation, module.linear2)]
    found = parts_of(module)
    if found is None:
        return []
    gate, up, down = (module.get_submodule(name) for name in found[:3])
    return [Pair((gate, up), found.activation_of(module), down)]


def _one_after_another(modules: list[nn.Module]) -> Activation:
    def apply(x: Tensor) -> Tensor:
        for module in modules:
            x = x if isinstance(module, nn.Dropout) else module(x.clone())  # some work in place
        return x

    return apply


def _shrink(pair: Pair, weights: dict[int, Weight]) -> bool:
    """Remove the neurons of one layer that nothing depends on. Were there any?"""
    gone, constant, value = _without_effect(pair, weights)
    columns = weights[id(pair.reader)].dense()
    if not bool(gone.any()):
        return False
    if pair.reader.bias is not None:
        added = columns[:, gone].double() @ torch.where(constant, value, 0.0)[gone].double()
        pair.reader.bias.copy_(pair.reader.bias.double() + added)
    kept = (~gone).nonzero().view(-1)
    for writer in pair.writers:
        _take(weights[id(writer)], kept, 0)
        if writer.bias is not None:
            set_data(writer.bias, writer.bias.detach()[kept].clone())
            writer.bias.grad = None
        writer.out_features = len(kept)
    _take(weights[id(pair.reader)], kept, 1)
    pair.reader.in_features = len(kept)
    return True


def _without_effect(pair: Pair, weights: dict[int, Weight]) -> tuple[Tensor, Tensor, Tensor]:
    """Which neurons can be removed, which of them have a constant output, and the output that these have."""
    constant, value = _constants(pair, weights)
    if pair.reader.bias is None:
        constant &= value == 0
    gone = constant | (weights[id(pair.reader)].dense() == 0).all(0)
    if bool(gone.all()):
        gone[0] = False  # a layer keeps at least one neuron
    return gone, constant, value


def _constants(pair: Pair, weights: dict[int, Weight]) -> tuple[Tensor, Tensor]:
    """Which neurons have an output that doesn't depend on the input, and the output they then have."""
    zero = [(weights[id(writer)].dense() == 0).all(1) for writer in pair.writers]
    bias = [torch.zeros_like(weights[id(w)].dense()[:, 0]) if w.bias is None else w.bias for w in pair.writers]
    first = pair.activation(bias[0])
    if len(pair.writers) == 1:
        return zero[0], first
    off = (zero[0] & (first == 0)) | (zero[1] & (bias[1] == 0))
    return off | (zero[0] & zero[1]), torch.where(off, 0.0, first * bias[1])


def _take(weight: Weight, kept: Tensor, dim: int) -> None:
    """Keep some rows or columns of a weight, in its format."""
    values, mask = (x.index_select(dim, kept) for x in (weight.dense(), weight.mask()))
    weight.parameter.grad = None
    format = weight.format
    weight.become(values, format=Dense())  # a mask of the old shape can't check values of the new one
    weight.become(values, mask, format)
