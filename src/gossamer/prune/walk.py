"""Running a model block by block, with the activations of one block at a time.

The model is run again for every block, but most of it isn't computed: finished blocks return their earlier outputs, and
the pass ends after the current block. Everything between the blocks (masks, reshapes, skips) runs as written, so this
works for any nn.Module. Only the last block's outputs are kept, unless the model needs earlier ones (a skip over
several blocks), which is detected on one batch first.

If a method follows the dense model, the dense activations are computed too, and each block is run once for every stage:
a stage is the layers that read the same activation.

The current block can run on another device than the model's; its weights are moved there for the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map_only

from gossamer.methods import Layer, survey
from gossamer.prune.calibration import tokens_of
from gossamer.prune.capture import Capture, Recorder
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

    Only modules with weights that can be pruned count; the rest of the model is between the blocks.

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


class Stream:
    """The outputs of the blocks that are done, one for each batch, of the dense model or of the pruned one."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {}
        self.shapes: dict[str, list[Any]] = {}  # all that is left where nobody reads the outputs any more

    def keep(self, block: str, outputs: list[Any], chain: bool) -> None:
        """Keep the outputs of a block; in a chain, nobody reads those of earlier blocks."""
        if chain:
            self.kept.clear()
        self.kept[block] = outputs
        self.shapes[block] = tree_map_only(Tensor, _without_data, outputs)


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
    follow
        Run the dense model beside the pruned one.
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
        follow: bool = False,
    ) -> None:
        self.model, self.batches, self.call, self.device = model, batches, call, device
        self.limit, self.align = limit, align
        self.store = torch.device("cpu") if device is not None or offload else None
        self.modules = dict(model.named_modules())
        self.pruned, self.dense = Stream(), Stream() if follow else None
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

    def stages(self, block: str, weights: dict[str, Tensor], layers: Sequence[Layer]) -> list[list[Layer]]:
        """The layers of a block in the order in which they run; those that read the same activation are together."""
        recorder = Recorder(_views(layers, weights))
        self._pass(0, block, weights, recorder, self.pruned)
        first: dict[str, float] = {}  # of a parameter: the first activation that any of its layers meets
        for layer in layers:
            met = recorder.order().get(layer.name, float("inf"))
            first[layer.parameter_name] = min(met, first.get(layer.parameter_name, met))
        return [[x for x in layers if first[x.parameter_name] == number] for number in sorted(set(first.values()))]

    def inputs(
        self,
        block: str,
        weights: dict[str, Tensor],
        watched: Sequence[Layer],
        dense: dict[str, Tensor] | None = None,
    ) -> dict[str, Gram]:
        """X X^T of some layers of a block, by name; `weights` stand in for the block's own parameters.

        With the `dense` ones, the activations of the dense model are taken in beside.
        """
        capture = Capture(_views(watched, weights), self.limit, self.align)
        recorder = None if self.dense is None or dense is None else Recorder(_views(watched, dense))
        for number, batch in enumerate(self.batches):
            capture.tokens = tokens_of(batch)
            if recorder is not None and dense is not None:
                self._pass(number, block, dense, recorder, self.dense)
                capture.dense = recorder.take()
            self._pass(number, block, weights, capture, self.pruned)
            capture.end_batch()
            for name, gram in capture.grams.items():
                if not gram.finite:
                    raise ValueError(
                        f"calibration batch {number} brings NaN or infinity to {name!r}: look for padding rows without "
                        "any token, overflow in half precision, or broken inputs, and leave the batch out"
                    )
        return capture.grams

    def advance(self, block: str, weights: dict[str, Tensor], dense: dict[str, Tensor] | None = None) -> None:
        """Keep the outputs of a block, computed with these weights, for the blocks after it."""
        for stream, own in ((self.pruned, weights), (self.dense, dense)):
            if stream is not None and own is not None:
                outputs = [self._pass(number, block, own, None, stream) for number, _ in enumerate(self.batches)]
                stream.keep(block, outputs, self.chain)

    def _pass(
        self, number: int, block: str, weights: dict[str, Tensor], capture: Capture | None, stream: Stream | None
    ) -> Any:
        """Run one batch up to the end of a block, and return the block's output."""
        assert stream is not None
        result: list[Any] = []

        def last(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            result.append(self._run(name, forward, args, kwargs, weights, capture))
            raise _Done

        def again(name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if name not in stream.kept:
                return stream.shapes[name][number]
            home = self._home(self.modules[name])
            return tree_map_only(Tensor, lambda t: t.to(home, copy=True), stream.kept[name][number])

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


def _views(layers: Sequence[Layer], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {layer.name: layer.view(weights[layer.parameter_name]) for layer in layers}


def _as_forward(name: str, forward: Callable[..., Any], patch: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return patch(name, forward, args, kwargs)

    return run


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")
