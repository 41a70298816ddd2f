"""What is added to a convolution in eight bits becomes an argument of it: the blocks of a ResNet.

The kernel adds it to its sums before it writes them. So the result of the convolution is not written and read again
only to be added to something: half of what an addition moves.
"""

from __future__ import annotations

from inspect import isbuiltin
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_aten, _conv = torch.ops.aten, torch.ops.gossamer.int8_conv2d.default
_IN_PLACE = _aten.add_.Tensor
_ADDITIONS = (_aten.add.Tensor, _IN_PLACE)
_ADD, _ACTIVATION = 3, 17  # positions among the arguments of a convolution


def add_in_convolutions(module: GraphModule) -> None:
    """Change the graph in place; results stay the same.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> class Block(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)
    ...     def forward(self, x):
    ...         return self.conv(x) + x
    >>> model = gs.quantize_(Block(), "int8").requires_grad_(False)
    >>> x = torch.ones(1, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    >>> graph = torch.export.export(model, (x,)).module()
    >>> add_in_convolutions(graph)
    >>> sum(node.target is torch.ops.aten.add.Tensor for node in graph.graph.nodes)
    0
    """
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    for node in list(module.graph.nodes):
        if node.target in _ADDITIONS and node.kwargs.get("alpha", 1) == 1:
            _fuse(node, order)
    module.recompile()


def _fuse(addition: Node, order: dict[Node, int]) -> None:
    """Let one of the two operands of an addition add the other, if it is a convolution that comes after it."""
    first, second = addition.args[:2]
    pairs = [(first, second)] if addition.target is _IN_PLACE else [(first, second), (second, first)]
    for conv, other in pairs:
        if not (isinstance(conv, Node) and isinstance(other, Node) and _can_add(conv, other)):
            continue
        if order[other] < order[conv] and not _changes(conv, addition):
            conv.update_arg(_ADD, other)
            addition.replace_all_uses_with(conv)
            addition.graph.erase_node(addition)
            return


def _can_add(conv: Node, other: Node) -> bool:
    """Is it a convolution that nothing else reads and that adds nothing yet, and has the other its shape and order?"""
    if conv is other or conv.target is not _conv or len(conv.users) != 1:
        return False
    if conv.args[_ADD] is not None or conv.args[_ACTIVATION] != 0:
        return False
    a, b = conv.meta.get("val"), other.meta.get("val")
    return _is_plain(a) and _is_plain(b) and a.shape == b.shape


def _is_plain(value: Any) -> TypeGuard[Tensor]:
    """Is it float32, with the channels last?"""
    floats = isinstance(value, Tensor) and value.dtype is torch.float32 and value.dim() == 4
    return floats and value.is_contiguous(memory_format=torch.channels_last)


def _changes(conv: Node, addition: Node) -> bool:
    """May a tensor change between a convolution and the addition? What is added is then read too early."""
    node = conv.next
    while node is not addition:
        if node.op == "call_function" and not isbuiltin(node.target):  # of Python's operators none changes a tensor
            schema = getattr(node.target, "_schema", None)
            if schema is None or schema.is_mutable:
                return True
        node = node.next
    return False
