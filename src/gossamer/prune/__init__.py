"""Pruning trained models: calibrated, second order, for any pattern."""

from gossamer.prune.curvature import Gram
from gossamer.prune.methods import OBS, Known, Magnitude, Method, Pruned, SparseGPT, Wanda
from gossamer.prune.oneshot import oneshot
from gossamer.prune.report import LayerReport, Report

__all__ = [
    "oneshot",
    "Report",
    "LayerReport",
    "Magnitude",
    "Wanda",
    "SparseGPT",
    "OBS",
    "Method",
    "Known",
    "Pruned",
    "Gram",
]
