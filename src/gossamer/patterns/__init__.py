"""Which positions may be kept: patterns turn scores into masks."""

from .base import Choice, Cost, Pattern
from .blocks import Blocks
from .fan_in import FanIn
from .grouped_nm import GroupedNM
from .keep_all import KeepAll
from .known import as_pattern, describe, recognise
from .nm import NM
from .shared_nm import SharedNM
from .threshold import Threshold
from .transposable_nm import TransposableNM
from .unstructured import Unstructured
from .vnm import VNM

__all__ = [
    "NM",
    "VNM",
    "Blocks",
    "Choice",
    "Cost",
    "FanIn",
    "GroupedNM",
    "KeepAll",
    "Pattern",
    "SharedNM",
    "Threshold",
    "TransposableNM",
    "Unstructured",
    "as_pattern",
    "describe",
    "recognise",
]
