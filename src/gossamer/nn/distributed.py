"""Several machines: DDP that sends the values of sparse gradients, and nothing else of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gossamer.tensor import SparseTensor


def reduce_values(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average gradients over the ranks; of a sparse parameter only the values at its stored positions are sent.

    A communication hook for ``DistributedDataParallel``. (Plain DDP is right too: it sends sparse gradients as dense
    ones.) Patterns must be the same on all ranks, as they are when DDP made the models equal at the start.

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
    ...     ddp = torch.nn.parallel.DistributedDataParallel(model)
    ...     ddp.register_comm_hook(None, gs.nn.reduce_values)
    ...     return ddp
    """
    group = state or dist.group.WORLD
    buffer = bucket.buffer()
    kept = _kept(bucket)
    if kept is None:
        sent = buffer.div_(group.size())
        return dist.all_reduce(sent, group=group, async_op=True).get_future().then(lambda f: f.value()[0])
    sent = buffer[kept].div_(group.size())

    def spread(future: Any) -> Tensor:
        return buffer.zero_().index_put_((kept,), future.value()[0])

    return dist.all_reduce(sent, group=group, async_op=True).get_future().then(spread)


def _kept(bucket: Any) -> Tensor | None:
    """Places in the bucket that are sent: all of a dense parameter, the stored positions of a sparse one."""
    parameters = bucket.parameters()
    sparse = [isinstance(p, SparseTensor) and p.grad_format is None for p in parameters]
    if not any(sparse):
        return None
    places, offset = [], 0
    for p, is_sparse in zip(parameters, sparse, strict=True):
        count = p.numel()
        keys = p.structure.entries().keys if is_sparse else torch.arange(count, device=p.device)
        places.append(keys + offset)
        offset += count
    return torch.cat(places)
