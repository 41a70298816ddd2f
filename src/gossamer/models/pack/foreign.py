"""Masks of torch.nn.utils.prune, which keeps ``weight_orig`` and ``weight_mask`` and multiplies them at each call."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import prune


def apply_masks(model: nn.Module) -> list[str]:
    """Make these masks permanent, as ``prune.remove`` does: zeros in an ordinary weight. Return the weights' names.

    Examples
    --------
    >>> layer = prune.l1_unstructured(nn.Linear(8, 8), "weight", amount=0.5)
    >>> apply_masks(layer), int((layer.weight == 0).sum()), "weight_mask" in layer.state_dict()
    (['weight'], 32, False)
    """
    applied = []
    for path, module in model.named_modules():
        hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, prune.BasePruningMethod)]
        for name in [str(hook._tensor_name) for hook in hooks]:
            prune.remove(module, name)
            applied.append(f"{path}.{name}" if path else name)
    return applied
