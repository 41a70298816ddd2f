"""Pruning trained models: calibrated, second order, for any pattern."""

from gossamer.prune.curvature import Gram
from gossamer.prune.distill import Distill, distill_hidden, distill_logits
from gossamer.prune.methods import OBS, Known, Magnitude, Method, Pruned, SparseGPT, Wanda
from gossamer.prune.once import oneshot
from gossamer.prune.report import LayerReport, Report
from gossamer.prune.staged import gradual

__all__ = [
    "oneshot",
    "gradual",
    "Report",
    "LayerReport",
    "Magnitude",
    "Wanda",
    "SparseGPT",
    "OBS",
    "Distill",
    "distill_hidden",
    "distill_logits",
    "Method",
    "Known",
    "Pruned",
    "Gram",
]
