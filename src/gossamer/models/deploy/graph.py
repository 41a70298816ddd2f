"""Fusion in the graph of an exported model: activations into our products, and layers with the same input into one.

Inductor fuses operators around a custom operator, but not into it. So this is done before inductor runs:

- what is added to a convolution in eight bits is added by it (``residual.py``);
- a GELU, ReLU or SiLU that is the only reader of a product's output is applied by the product;
- int8 layers that read the same input (the query, key and value of attention) become one layer with the rows of all of
  them: the input is rounded once, and there is one call instead of three.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from gossamer.kernels.int8.layout import as_rounded, layout_of, pack_as
from gossamer.kernels.int8.operators import ACTIVATIONS
from gossamer.kernels.int8.weight import Rounded, range_of, with_head_of
from gossamer.models.deploy.residual import add_in_convolutions

_aten, _ours = torch.ops.aten, torch.ops.gossamer
_int8 = _ours.int8_linear.default
#: Products, and the position of the argument that says which activation they apply.
_PRODUCTS = {_int8: 4, _ours.int8_conv2d.default: 17}
_KNOWN: dict[Any, str] = {
    _aten.relu.default: "relu", _aten.relu_.default: "relu", _aten.gelu.default: "gelu",
    _aten.silu.default: "silu", _aten.silu_.default: "silu",
}  # fmt: skip


def fuse(module: GraphModule) -> None:
    """Change the graph and its constants in place; results stay the same up to rounding.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.quantize_(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), "int8")
    >>> with torch.no_grad():
    ...     graph = torch.export.export(model, (torch.ones(1, 8),)).module()
    >>> fuse(graph)
    >>> [node.args[4] for node in graph.graph.nodes if node.target is torch.ops.gossamer.int8_linear.default]
    [2]
    """
    add_in_convolutions(module)
    for node in list(module.graph.nodes):
        if node.target in _PRODUCTS:
            _fuse_activation(node, _PRODUCTS[node.target])
    by_input: dict[Any, list[Node]] = defaultdict(list)
    for node in module.graph.nodes:
        if node.target is _int8 and (key := _mergeable(module, node)) is not None:
            by_input[key].append(node)
    for number, nodes in enumerate(group for group in by_input.values() if len(group) > 1):
        _merge(module, nodes, f"_merged{number}")
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()


def _fuse_activation(product: Node, place: int) -> None:
    follower = next(iter(product.users), None)
    if follower is None or len(product.users) > 1 or product.args[place] != 0 or follower.args[0] is not product:
        return
    name = _KNOWN.get(follower.target)
    if name is None or follower.kwargs.get("approximate", "none") != "none":
        return
    product.update_arg(place, ACTIVATIONS.index(name))
    follower.replace_all_uses_with(product)
    product.graph.erase_node(follower)


def _mergeable(module: GraphModule, node: Node) -> Any:
    """What layers must agree in to become one; None for a layer that can't."""
    weight, x, bias, _, activation = node.args
    held = [n for n in (weight, bias) if n is not None]
    if not all(isinstance(n, Node) and n.op == "get_attr" and len(n.users) == 1 for n in held):
        return None
    packed = _held(module, weight)
    return x, str(layout_of(packed)), range_of(packed), bias is None, activation


def _held(module: GraphModule, node: Any) -> Tensor:
    path, _, name = node.target.rpartition(".")
    return getattr(module.get_submodule(path), name)


def _merge(module: GraphModule, nodes: list[Node], name: str) -> None:
    """One product for several of the same input, and each one's share of its output."""
    first, graph = nodes[0], module.graph
    weights = [_held(module, node.args[0]) for node in nodes]
    module.register_buffer(f"{name}_packed", _stacked(weights))
    has_bias = first.args[2] is not None
    if has_bias:
        biases = [_held(module, node.args[2]).detach() for node in nodes]
        module.register_buffer(f"{name}_bias", torch.cat(biases))
    rows = [int(node.args[3]) for node in nodes]  # type: ignore[arg-type]
    with graph.inserting_before(first):
        weight = graph.get_attr(f"{name}_packed")
        bias = graph.get_attr(f"{name}_bias") if has_bias else None
        whole = graph.call_function(_int8, (weight, first.args[1], bias, sum(rows), first.args[4]))
        whole.meta["val"] = torch.cat([node.meta["val"] for node in nodes], -1)
        begin = 0
        for node, count in zip(nodes, rows, strict=True):
            part = graph.call_function(_aten.slice.Tensor, (whole, -1, begin, begin + count))
            node.replace_all_uses_with(part)
            begin += count
    for node in nodes:
        graph.erase_node(node)


def _stacked(weights: list[Tensor]) -> Tensor:
    """Return int8 weights of one layout and range as one, row below row."""
    rounded, masks = zip(*(as_rounded(weight) for weight in weights), strict=True)
    whole = Rounded(torch.cat([r.values for r in rounded]), torch.cat([r.scale for r in rounded]))
    return with_head_of(pack_as(whole, torch.cat(masks), layout_of(weights[0])), weights[0])
