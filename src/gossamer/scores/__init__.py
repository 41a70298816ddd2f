"""How much a value matters: scores are pure functions of tensors."""

from .base import Score
from .block_fisher import BlockFisher
from .collect import Collector
from .fisher import Fisher
from .gradient import Gradient
from .hard_concrete import HardConcrete
from .known import as_score
from .magnitude import Magnitude
from .movement import Movement
from .random import Random
from .wanda import Wanda

__all__ = [
    "BlockFisher",
    "Collector",
    "Fisher",
    "Gradient",
    "HardConcrete",
    "Magnitude",
    "Movement",
    "Random",
    "Score",
    "Wanda",
    "as_score",
]
