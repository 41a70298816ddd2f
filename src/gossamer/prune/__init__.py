"""Pruning trained models, with calibration data and second-order methods, for any pattern.

>>> import torch, gossamer as gs
>>> model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
>>> batches = [torch.randn(32, 16) for _ in range(8)]
>>> report = gs.prune.oneshot(model, gs.NM(2, 4), calibration=batches, method="sparsegpt")
>>> [(row.name, row.sparsity) for row in report.layers]
[('0.weight', 0.5), ('2.weight', 0.5)]
"""

from gossamer.methods.distill import Distill, distill_attention, distill_hidden, distill_logits
from gossamer.prune.gram import Gram
from gossamer.prune.methods import ByScore, Known, Method, Pruned
from gossamer.prune.obs import OBS
from gossamer.prune.once import oneshot
from gossamer.prune.recovery import recover
from gossamer.prune.report import LayerReport, Report
from gossamer.prune.sparsegpt import SparseGPT
from gossamer.prune.staged import gradual

__all__ = [
    "oneshot",
    "gradual",
    "recover",
    "Report",
    "LayerReport",
    "SparseGPT",
    "OBS",
    "ByScore",
    "Distill",
    "distill_attention",
    "distill_hidden",
    "distill_logits",
    "Method",
    "Known",
    "Pruned",
    "Gram",
]
