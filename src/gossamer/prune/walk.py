"""Walking a model block by block, with the activations of one block at a time.

The model is run again for every block, but most of it doesn't compute: blocks that are done return what they returned
before, and the pass ends after the block at hand. Whatever a model does between its blocks (masks, reshapes, skips)
happens as written, so any nn.Module will do. Only the last block's outputs are kept, unless the model reaches back
further (a skip over several blocks); that is found out beforehand, on one batch.

The block at hand can run on another device than the model lives on: its weights are lent to it for the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map_only

from gossamer.methods import Layer, survey
from gossamer.prune.capture import Capture
from gossamer.prune.gram import Gram

Call = Callable[[nn.Module, Any], Any]
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class _Done(BaseException):
    """Ends a forward pass after the block at hand; not an Exception, so that no model swallows it."""


class _Lent(nn.Module):
    """A block with the forward pass it had before we put ours in its place."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.block = block
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


def find_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks of a model: items of its lists and sequences, and single modules outside them.

    Only those count that hold weights which can be pruned; the rest of the model is between the blocks.

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3)), nn.Flatten())
    >>> find_blocks(model)
    ['0', '1.1']
    >>> find_blocks(nn.Linear(2, 2))
    ['']
    """
    return _split(model, "", {id(layer.parameter) for layer in survey(model).layers})


def _split(module: nn.Module, path: str, prunable: set[int]) -> list[str]:
    if not any(id(p) in prunable for p in module.parameters()):
        return []
    own = any(id(p) in prunable for p in module.parameters(recurse=False))
    listed = any(isinstance(m, _LISTS) and len(m) > 1 for m in module.modules())
    if own or (path and not listed):
        return [path]
    found = []
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(module, _LISTS) and not isinstance(child, _LISTS):  # an item of a list is one block
            found += [inner] if any(id(p) in prunable for p in child.parameters()) else []
        else:
            found += _split(child, inner, prunable)
    return found


class Walk:
    """Runs calibration batches through a model, a block at a time.

    Parameters
    ----------
    model
        Any module, in evaluation mode.
    batches
        What `call` takes with the model; already checked.
    call
        ``call(model, batch)`` runs the model.
    device
        Where blocks compute; None: where the model is. Kept activations then wait on the CPU.
    offload
        Keep activations on the CPU in any case.
    limit, align
        Bytes that X X^T of one layer may take, and of what its blocks are a multiple; see :class:`Gram`.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        call: Call,
        device: torch.device | None = None,
        offload: bool = False,
        limit: float = float("inf"),
        align: int = 8,
    ) -> None:
        self.model, self.batches, self.call, self.device = model, batches, call, device
        self.limit, self.align = limit, align
        self.store = torch.device("cpu") if device is not None or offload else None
        self.modules = dict(model.named_modules())
        self.kept: dict[str, list[Any]] = {}  # outputs of the blocks that are done, a batch each ...
        self.shapes: dict[str, list[Any]] = {}  # ... or just their shapes, where nobody reads them any more
        self.visiting: tuple[str | None, dict[str, Tensor]] = (None, {})
        self.blocks, self.chain = self._survey()

    # -- finding out how the model uses its blocks

    def _survey(self) -> tuple[list[str], bool]:
        """The blocks in the order they run, and whether each needs nothing but the one before it."""
        blocks = find_blocks(self.model)
        order: list[str] = []
        outputs: dict[str, Any] = {}

        def note(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            order.append(name)
            outputs[name] = self._run(name, forward, args, kwargs, {})
            return outputs[name]

        if blocks != [""]:
            with self._patched(dict.fromkeys(blocks, note)):
                self.call(self.model, self.batches[0])
        if not order or len(set(order)) < len(order) or self._reached([b for b in blocks if b not in order]):
            return [""], True  # a block that runs twice, or is used without being run: take all of the model as one
        return order, all(self._follows(order, k, outputs) for k in range(2, len(order)))

    def _reached(self, blocks: list[str]) -> bool:
        """Does the model use weights of these blocks, though it never runs them?"""
        weights = {layer.parameter_name: layer.parameter for layer in survey(self.model).layers}
        inside = {n: p for n, p in weights.items() if any(n.startswith(f"{b}.") for b in blocks)}
        if not inside:
            return False
        with torch.no_grad(), Capture(inside) as capture:
            self.call(self.model, self.batches[0])
        capture.end_batch()
        return bool(capture.grams)

    def _follows(self, blocks: list[str], k: int, outputs: dict[str, Any]) -> bool:
        """Can block k be reached when all but the block before it return tensors without data?"""
        found: list[Tensor] = []

        def empty(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return tree_map_only(Tensor, _without_data, outputs[name])

        def real(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            return tree_map_only(Tensor, torch.clone, outputs[name])

        def look(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            found.extend(t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor))
            raise _Done

        patches = {**dict.fromkeys(blocks[: k - 1], empty), blocks[k - 1]: real, blocks[k]: look}
        try:
            with self._patched(patches):
                self.call(self.model, self.batches[0])
        except _Done:
            return not any(t.is_meta for t in found)
        except Exception:  # something between the blocks wanted data
            return False
        return False

    # -- passes

    def inputs(self, block: str, weights: dict[str, Tensor], watched: Sequence[Layer]) -> dict[str, Gram]:
        """X X^T of some layers of a block, by name; `weights` stand in for the block's own parameters."""
        views = {layer.name: layer.view(weights[layer.parameter_name]) for layer in watched}
        capture = Capture(views, self.limit, self.align)
        for number, _ in enumerate(self.batches):
            self._pass(number, block, weights, capture)
            capture.end_batch()
            for name, gram in capture.grams.items():
                if not gram.finite:
                    raise ValueError(
                        f"calibration batch {number} brings NaN or infinity to {name!r}: look for padding rows without "
                        "any token, overflow in half precision, or broken inputs, and leave the batch out"
                    )
        return capture.grams

    def advance(self, block: str, weights: dict[str, Tensor]) -> None:
        """Keep the outputs of a block, computed with these weights, for the blocks after it."""
        outputs = [self._pass(number, block, weights, None) for number, _ in enumerate(self.batches)]
        if self.chain:
            self.kept.clear()
        self.kept[block] = outputs
        self.shapes[block] = tree_map_only(Tensor, _without_data, outputs)

    def _pass(self, number: int, block: str, weights: dict[str, Tensor], capture: Capture | None) -> Any:
        """Run one batch up to the end of a block, and return the block's output."""
        result: list[Any] = []

        def last(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            result.append(self._run(name, forward, args, kwargs, weights, capture))
            raise _Done

        def again(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if name not in self.kept:
                return self.shapes[name][number]
            home = self._home(self.modules[name])
            return tree_map_only(Tensor, lambda t: t.to(home, copy=True), self.kept[name][number])

        done = self.blocks[: self.blocks.index(block)]
        try:
            with self._patched({**dict.fromkeys(done, again), block: last}):
                self.call(self.model, self.batches[number])
        except _Done:
            pass
        if not result:
            raise RuntimeError(
                f"block {block!r} did not run for calibration batch {number}, though it did for the first"
            )
        output = tree_map_only(Tensor, lambda t: t.detach(), result[0])
        return output if self.store is None else tree_map_only(Tensor, lambda t: t.to(self.store), output)

    def _run(
        self,
        name: str,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        weights: dict[str, Tensor],
        capture: Capture | None = None,
    ) -> Any:
        block = self.modules[name]
        prefix = f"{name}." if name else ""
        lent = dict(self._lent(name, block))
        if self.device is not None:
            args, kwargs = tree_map_only(Tensor, lambda t: t.to(self.device), (args, kwargs))
        lent.update({f"block.{n.removeprefix(prefix)}": t for n, t in weights.items()})
        run = _Lent(block, forward)
        if capture is None:
            out = functional_call(run, lent, args, kwargs)
        else:
            with capture:
                out = functional_call(run, lent, args, kwargs)
        home = self._home(block)
        return out if self.device is None else tree_map_only(Tensor, lambda t: t.to(home), out)

    def _lent(self, name: str, block: nn.Module) -> dict[str, Tensor]:
        """Parameters and buffers of a block where it computes; those of the last block asked for are kept there."""
        if self.device is None:
            return {}
        if self.visiting[0] != name:
            state = {**dict(block.named_parameters()), **dict(block.named_buffers())}
            self.visiting = (name, {})  # the last ones leave before the next ones come
            self.visiting = (name, {f"block.{n}": t.detach().to(self.device) for n, t in state.items()})
        return self.visiting[1]

    def _home(self, block: nn.Module) -> torch.device:
        return next((p.device for p in block.parameters()), torch.device("cpu"))

    @contextmanager
    def _patched(self, patches: dict[str, Callable[..., Any]]) -> Iterator[None]:
        """Put other forward passes in place of some modules', and theirs back whatever happens."""
        before: list[tuple[nn.Module, Any]] = []
        missing = object()
        try:
            for name, patch in patches.items():
                module = self.modules[name]
                before.append((module, module.__dict__.get("forward", missing)))
                module.__dict__["forward"] = _as_forward(name, module.forward, patch)
            with torch.no_grad():
                yield
        finally:
            for module, forward in reversed(before):
                if forward is missing:
                    module.__dict__.pop("forward", None)
                else:
                    module.__dict__["forward"] = forward


def _as_forward(name: str, forward: Callable[..., Any], patch: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return patch(name, forward, args, kwargs)

    return run


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")
