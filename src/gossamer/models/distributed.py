"""Several machines: DDP that sends only the values of sparse gradients."""

# No postponed annotations here: DDP reads the types of a communication hook when it is registered.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from gossamer.core.tensor import SparseTensor
from gossamer.models.masked import MaskedParameter
from gossamer.models.weights import sparse_weights


def reduce_values(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients over the ranks; for a sparse parameter, only the values at its stored positions are sent.

    A communication hook for ``DistributedDataParallel``. (Plain DDP is correct too, but sends sparse gradients as dense
    ones.) Patterns must be the same on all ranks: see :func:`synchronize_`.

    Parameters
    ----------
    state
        A process group, or None for the default one.
    bucket
        What DDP hands over.

    Examples
    --------
    >>> import gossamer as gs
    >>> def wrap(model):
    ...     ddp = torch.nn.parallel.DistributedDataParallel(gs.nn.synchronize_(model))
    ...     ddp.register_comm_hook(None, gs.nn.reduce_values)
    ...     return ddp
    """
    group: Any = state or dist.group.WORLD
    buffer = bucket.buffer()
    kept = _kept(bucket)
    sent = (buffer if kept is None else buffer[kept]).div_(group.size())

    def spread(future: Any) -> Tensor:
        reduced: Tensor = future.value()[0]
        return reduced if kept is None else buffer.zero_().index_put_((kept,), reduced)

    return dist.all_reduce(sent, group=group, async_op=True).get_future().then(spread)


def reduce_in_order(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients like :func:`reduce_values`, but add the ranks in a fixed order, so that restarts are bitwise
    exact.

    The order in which ``all_reduce`` adds three or more ranks depends on a value's place in its bucket, and DDP
    arranges its buckets differently after the first step. So a resumed job adds in another order than one that was
    never stopped. Here each rank gets its share of the values of all ranks, adds them in order, and sends the sums: as
    many bytes as ``all_reduce``, but without overlap with the backward pass.

    Parameters
    ----------
    state
        A process group, or None for the default one.
    bucket
        What DDP hands over.

    Examples
    --------
    >>> import gossamer as gs
    >>> def wrap(model):
    ...     ddp = torch.nn.parallel.DistributedDataParallel(gs.nn.synchronize_(model))
    ...     ddp.register_comm_hook(None, gs.nn.reduce_in_order)
    ...     return ddp
    """
    group: Any = state or dist.group.WORLD
    buffer, kept, ranks = bucket.buffer(), _kept(bucket), group.size()
    sent = buffer if kept is None else buffer[kept]
    share = -(-sent.numel() // ranks)
    padded = torch.nn.functional.pad(sent, (0, share * ranks - sent.numel()))
    parts = torch.empty_like(padded)
    dist.all_to_all_single(parts, padded, group=group)
    first, *others = parts.view(ranks, share)
    for part in others:
        first += part
    dist.all_gather(list(padded.view(ranks, share)), first.div_(ranks), group=group)
    reduced = padded[: sent.numel()]
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(reduced if kept is None else buffer.zero_().index_put_((kept,), reduced))
    return done


def _kept(bucket: GradBucket) -> Tensor | None:
    """Places in the bucket that are sent: all of a dense parameter, the stored positions of a sparse one."""
    parameters = bucket.parameters()
    masks = [p.mask() if isinstance(p, MaskedParameter) and not _whole(p) else None for p in parameters]
    if all(mask is None for mask in masks):
        return None
    places, offset = [], 0
    for p, mask in zip(parameters, masks, strict=True):
        kept = torch.arange(p.numel(), device=p.device) if mask is None else torch.nonzero(mask.view(-1)).squeeze(1)
        places.append(kept + offset)
        offset += p.numel()
    return torch.cat(places)


def _whole(parameter: MaskedParameter) -> bool:
    """Does its gradient count at every position in this step?"""
    return parameter.home is not None and parameter.home.held.whole


def synchronize_(model: nn.Module, source: int = 0, group: Any = None) -> nn.Module:
    """Copy the patterns and values of one rank's sparse parameters to all ranks, in place.

    DDP copies the values to all ranks when it wraps a model, but doesn't know about patterns. Call this first, unless
    all ranks have the same patterns (from the same weights or the same seed).

    Parameters
    ----------
    model
        The model, with the same parameters in the same formats on every rank.
    source
        The rank whose patterns are used.
    group
        A process group; the default one if None.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(8, 8), "75%")
    >>> gs.nn.synchronize_(model) is model  # alone, there is nothing to do
    True
    """
    if not (dist.is_available() and dist.is_initialized()):
        return model
    for weight in sparse_weights(model).values():
        tensor = weight.sparse()
        parts = [tensor._values, *tensor.structure.arrays.values()]
        sizes: list[Any] = [(tuple(p.shape), p.dtype) for p in parts]
        dist.broadcast_object_list(sizes, source, group=group)
        mine = dist.get_rank(group) == source
        received = [
            p.contiguous() if mine else torch.empty(shape, dtype=dtype, device=p.device)
            for p, (shape, dtype) in zip(parts, sizes, strict=True)
        ]
        for part in received:
            _broadcast(part, source, group)
        if not mine:
            arrays = dict(zip(tensor.structure.arrays, received[1:], strict=True))
            weight.become(SparseTensor.from_arrays(weight.format, weight.shape, received[0], arrays))
    return model


def _broadcast(part: Tensor, source: int, group: Any) -> None:
    """Broadcast, masks as bytes: not every backend knows bool."""
    dist.broadcast(part.view(torch.uint8) if part.dtype == torch.bool else part, source, group=group)
