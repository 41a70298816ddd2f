"""Calibration batches: running a model on one, checks, and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map_only

from gossamer.methods import Layer
from gossamer.scores import Collector

Loss = Callable[[Any, Any], Tensor]


def run(model: nn.Module, batch: Any) -> Any:
    """Run a model on a batch: a tensor, a tuple or list of arguments, or a mapping of keyword arguments.

    Examples
    --------
    >>> import torch
    >>> run(torch.nn.Identity(), torch.ones(1)), run(torch.nn.Identity(), {"input": torch.ones(1)})
    (tensor([1.]), tensor([1.]))
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def gather(calibration: Iterable[Any] | None, model: nn.Module, needed_by: str | None) -> list[Any]:
    """The batches as a list, after checks: not empty, on the model's device, without NaN.

    A list, because every block uses them again, and a shuffling loader would return other batches.
    """
    if calibration is None:
        if needed_by:
            raise ValueError(
                f"{needed_by} needs calibration: pass some batches of typical inputs "
                "(calibration=[...]), or use method='magnitude'"
            )
        return []
    if isinstance(calibration, Tensor | Mapping | str):
        raise TypeError(
            f"calibration must be an iterable of batches, got one {type(calibration).__name__}: "
            "write calibration=[batch]"
        )
    batches = list(calibration)
    if not batches:
        raise ValueError("calibration is empty: pass at least one batch (has a generator been used up before?)")
    homes = {str(p.device) for p in model.parameters()} | {str(b.device) for b in model.buffers()}
    for number, batch in enumerate(batches):
        for tensor in _tensors(batch):
            if homes and str(tensor.device) not in homes:
                raise ValueError(
                    f"calibration batch {number} is on {tensor.device}, the model on {', '.join(sorted(homes))}: "
                    "move one to the other first, e.g. batch.to(device)"
                )
            if tensor.numel() == 0:
                raise ValueError(f"calibration batch {number} is empty: it has a tensor of shape {tuple(tensor.shape)}")
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(
                    f"calibration batch {number} contains NaN or infinity: leave it out, or repair the data"
                )
    return batches


def _tensors(batch: Any) -> list[Tensor]:
    plain = dict(batch) if isinstance(batch, Mapping) else batch
    return [t for t in tree_flatten(plain)[0] if isinstance(t, Tensor)]


def samples(batches: Sequence[Any], each: bool) -> Iterator[Any]:
    """The batches themselves, or divided into samples along the first dimension of all their tensors."""
    for batch in batches:
        sizes = {t.shape[0] for t in _tensors(batch) if t.dim()}
        if not each or len(sizes) != 1:
            yield batch
            continue
        plain = dict(batch) if isinstance(batch, Mapping) else batch
        for i in range(sizes.pop()):
            yield tree_map_only(Tensor, lambda t, i=i: t[i : i + 1] if t.dim() else t, plain)


class _Run(nn.Module):
    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, batch: Any) -> Any:
        return self._call(self.model, batch)


def add_gradients(
    model: nn.Module,
    call: Callable[[nn.Module, Any], Any],
    parts: Sequence[Any],
    loss: Loss | None,
    collectors: Mapping[Layer, Collector],
    probe: bool = True,
) -> None:
    """Compute one gradient of the loss for each part of the calibration data, and add it to the layers' collectors.

    Parameters
    ----------
    model, call
        ``call(model, part)`` is the output.
    parts
        Of the calibration data, one for each gradient.
    loss
        ``loss(output, part)``; None: the output's own loss, or a random projection of the output.
    collectors
        The collector of each layer.
    probe
        May a random projection be used if there is no loss? Its gradients describe the curvature, not the slope.
    """
    layers = list(collectors)
    weights = {x.parameter_name: x.dense() for x in layers}
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    runner = _Run(model, call)
    generator = torch.Generator().manual_seed(0)
    for number, part in enumerate(parts):
        with torch.enable_grad():
            output = functional_call(runner, {f"model.{n}": w for n, w in weights.items()}, (part,))
            value = _loss(output, part, loss, generator, probe)
            grads = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        for name, grad in zip(weights, grads, strict=True):
            if grad is None:
                continue
            if not bool(grad.isfinite().all()):
                raise ValueError(
                    f"the gradient of {name!r} for calibration part {number} contains NaN or infinity: look for "
                    "overflow in half precision or a loss that isn't finite, or leave that batch out"
                )
            for layer in layers:
                if layer.parameter_name == name:
                    collectors[layer].add(layer.matrix(grad))


def _loss(output: Any, part: Any, loss: Loss | None, generator: torch.Generator, probe: bool) -> Tensor:
    if loss is not None:
        value = loss(output, part)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ValueError(f"loss(output, batch) must return a scalar tensor with a gradient, got {value!r}")
        return value
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    if not probe:
        raise ValueError(
            "this score needs the gradient of a loss, and the model's output has no .loss: pass loss=, a function of "
            "(output, batch)"
        )
    return _probe(output, part, generator)


def _probe(output: Any, part: Any, generator: torch.Generator) -> Tensor:
    """A random projection of the outputs: its gradients have the curvature of the squared distance to these outputs.

    E[(J^T r)(J^T r)^T] = J^T J for a normal r, the Gauss-Newton matrix of |f(w) - f(w0)|^2 / 2 at w0: what is wanted
    of a pruned model when there are no labels.
    """
    names = ("logits", "last_hidden_state", "prediction_logits")
    found = next((getattr(output, n) for n in names if isinstance(getattr(output, n, None), Tensor)), None)
    tensors = [found] if found is not None else [t for t in tree_flatten(output)[0] if isinstance(t, Tensor)]
    tensors = [t for t in tensors if t.is_floating_point() and t.requires_grad]
    if not tensors:
        raise ValueError(
            "the model's output holds no float tensor with a gradient: pass loss=, a function of (output, batch)"
        )
    mask = part.get("attention_mask") if isinstance(part, Mapping) else None
    total = tensors[0].new_zeros((), dtype=torch.float32)
    for t in tensors:
        r = torch.randn(t.shape, generator=generator).to(t.device)
        if isinstance(mask, Tensor) and mask.shape == t.shape[:2] and t.dim() == 3:
            r = r * mask[..., None]
        total = total + (t.float() * r).sum()
    return total


def tokens_of(batch: Any) -> Tensor | None:
    """Which tokens of a batch are no padding, [sequences, tokens]; None: all, or it doesn't say.

    Examples
    --------
    >>> import torch
    >>> tokens_of({"input_ids": torch.ones(1, 3), "attention_mask": torch.tensor([[1, 1, 0]])})
    tensor([[ True,  True, False]])
    """
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.is_floating_point() or bool(mask.all()):
        return None
    return mask.bool()
