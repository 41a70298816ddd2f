"""Sparse training from scratch: methods, distributions, schedules."""

from gossamer import schedules
from gossamer.train import callbacks, distributions, rules
from gossamer.train.acdc import ACDC
from gossamer.train.base import Method
from gossamer.train.distributions import budgets
from gossamer.train.exchange import Exchange
from gossamer.train.gmp import GMP
from gossamer.train.l0 import HardConcrete
from gossamer.train.layers import Layer
from gossamer.train.movement import Movement
from gossamer.train.null import Null
from gossamer.train.recipe import Recipe
from gossamer.train.rigl import RigL
from gossamer.train.set import SET
from gossamer.train.srigl import SRigL
from gossamer.train.static import Static
from gossamer.train.ste import SRSTE, STE
from gossamer.train.straight import Straight
from gossamer.train.topkast import TopKAST

__all__ = [
    "ACDC", "Exchange", "GMP", "HardConcrete", "Layer", "Method", "Movement", "Null", "Recipe", "RigL", "SET", "SRSTE",
    "SRigL", "STE", "Static", "Straight", "TopKAST", "budgets", "callbacks", "distributions", "rules", "schedules",
]  # fmt: skip
