"""How much a value matters: scores are pure functions of tensors."""

from .base import Score
from .fisher import Fisher
from .gradient import Gradient
from .hard_concrete import HardConcrete
from .magnitude import Magnitude
from .movement import Movement
from .random import Random
from .wanda import Wanda

__all__ = ["Fisher", "Gradient", "HardConcrete", "Magnitude", "Movement", "Random", "Score", "Wanda"]
