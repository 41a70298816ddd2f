"""Which positions may stay: patterns turn scores into masks."""

from .base import Cost, Pattern
from .blocks import Blocks
from .fan_in import FanIn
from .grouped_nm import GroupedNM
from .keep_all import KeepAll
from .nm import NM
from .parse import as_pattern
from .threshold import Threshold
from .unstructured import Unstructured
from .vnm import VNM

__all__ = [
    "NM",
    "VNM",
    "Blocks",
    "Cost",
    "FanIn",
    "GroupedNM",
    "KeepAll",
    "Pattern",
    "Threshold",
    "Unstructured",
    "as_pattern",
]
