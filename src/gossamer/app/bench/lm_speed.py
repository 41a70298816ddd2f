"""How long trained networks take for one token, on one thread of a CPU."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from gossamer.models import pack_


@torch.no_grad()
def one_token(models: Mapping[str, nn.Module], rounds: int = 30) -> dict[str, float]:
    """Return milliseconds of one token for each model, in float32; sparse ones are packed before.

    Parameters
    ----------
    models
        Of bytes, as :class:`gossamer.app.bench.lm_model.GPT`. They are not changed.
    rounds
        See :func:`fastest`.
    """
    token, threads = torch.zeros(1, 1, dtype=torch.long), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = {name: copy.deepcopy(model).cpu().float().eval() for name, model in models.items()}
        for model in made.values():
            pack_(model, token, quiet=True)
        return fastest({name: partial(model, token) for name, model in made.items()}, rounds)
    finally:
        torch.set_num_threads(threads)


def fastest(calls: Mapping[str, Callable[[], Any]], rounds: int, repeats: int = 10) -> dict[str, float]:
    """Return the least CPU time of each call, in milliseconds; calls are interleaved, so that load meets all of them.

    Examples
    --------
    >>> list(fastest({"none": lambda: None, "sum": lambda: sum(range(100))}, rounds=2))
    ['none', 'sum']
    """
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(repeats):
                began = time.process_time()
                call()
                best[name] = min(best[name], time.process_time() - began)
    return {name: round(1e3 * seconds, 4) for name, seconds in best.items()}
