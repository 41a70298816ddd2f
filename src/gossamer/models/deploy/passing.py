"""Bytes between int8 layers: no floats are written where only int8 layers with one fixed range read them.

The layer before rounds its output itself, in the range of the layers behind it. That is what they would do with the
floats, so results are the same to the last bit, but a quarter of the bytes is written and read. Ranges are fixed by
``gs.quantize_(model, "int8", calibration=...)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gossamer.kernels.int8.operators import OUTPUTS
from gossamer.kernels.int8.weight import Range, range_of

_ours = torch.ops.gossamer
_linear, _ranged, _conv = _ours.int8_linear.default, _ours.int8_linear_ranged.default, _ours.int8_conv2d.default


def pass_bytes(module: GraphModule) -> None:
    """Change the graph in place; results stay the same.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.models.deploy.graph import fuse
    >>> layers = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)
    >>> model = gs.quantize_(torch.nn.Sequential(*layers), "int8", calibration=[torch.randn(4, 8)])
    >>> with torch.no_grad():
    ...     graph = torch.export.export(model, (torch.ones(1, 8),)).module()
    >>> fuse(graph)
    >>> pass_bytes(graph)
    >>> sum(node.target is torch.ops.gossamer.int8_linear_ranged.default for node in graph.graph.nodes)
    2
    """
    products = [node for node in module.graph.nodes if node.target in (_linear, _conv)]
    written = {node: found for node in products if (found := _range_of_readers(module, node)) is not None}
    touched = [node for node in products if node in written or node.args[1] in written]
    for number, node in enumerate(touched):
        _rewrite(module, node, written, f"_range{number}")
    module.graph.eliminate_dead_code()
    module.recompile()


def _range_of_readers(module: GraphModule, node: Node) -> Range | None:
    """The one fixed range in which all readers of a product's output round it; None if there is none."""
    readers = list(node.users)
    if not readers or not all(
        reader.target is node.target and _reads_only_as_input(reader, node) for reader in readers
    ):
        return None
    if not all(_takes_bytes(each.meta.get("val")) for each in (node, *readers)):
        return None
    ranges = {_range(module, reader) for reader in readers}
    return ranges.pop() if len(ranges) == 1 else None


def _reads_only_as_input(reader: Node, node: Node) -> bool:
    """Is it the input of a product, and not also what a convolution adds to its result?"""
    return [place for place, value in enumerate(reader.args) if value is node] == [1]


def _takes_bytes(value: Any) -> bool:
    """Is it float32, and are the channels of images last? Convolutions read and write bytes in that order only."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32:
        return False
    return value.dim() != 4 or value.is_contiguous(memory_format=torch.channels_last)


def _range(module: GraphModule, node: Node) -> Range | None:
    """The fixed range of a product's activations."""
    weight: Any = node.args[0]
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return None
    path, _, name = str(weight.target).rpartition(".")
    return range_of(getattr(module.get_submodule(path), name))


def _rewrite(module: GraphModule, node: Node, written: dict[Node, Range], name: str) -> None:
    """Let a product read bytes, or write them, or both."""
    with module.graph.inserting_before(node):
        out = _held(module, written.get(node), f"{name}_out")
        if node.target is _conv:
            node.update_arg(4, out[0])
            node.update_arg(5, out[1])
            return
        weight, x, bias, rows, activation = node.args
        read = _held(module, _range(module, node), f"{name}_in")
        kind = OUTPUTS.index(torch.uint8 if node in written else torch.float32)
        made = module.graph.call_function(_ranged, (weight, x, bias, *read, *out, rows, activation, kind))
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)


def _held(module: GraphModule, given: Range | None, name: str) -> tuple[Node | None, Node | None]:
    """The scale and the zero of a range as constants of the graph."""
    if given is None:
        return None, None
    module.register_buffer(f"{name}_scale", torch.tensor([given.scale], dtype=torch.float32))
    module.register_buffer(f"{name}_zero", torch.tensor([given.zero], dtype=torch.int32))
    return module.graph.get_attr(f"{name}_scale"), module.graph.get_attr(f"{name}_zero")
