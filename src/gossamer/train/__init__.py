"""Training sparse from the first step: methods, distributions, schedules."""

from gossamer.train import distributions, rules, schedules
from gossamer.train.base import Method
from gossamer.train.distributions import budgets
from gossamer.train.gmp import GMP
from gossamer.train.layers import Layer
from gossamer.train.null import Null
from gossamer.train.rigl import RigL
from gossamer.train.set import SET
from gossamer.train.srigl import SRigL
from gossamer.train.static import Static

__all__ = [
    "GMP", "Layer", "Method", "Null", "RigL", "SET", "SRigL", "Static", "budgets", "distributions", "rules", "schedules",
]  # fmt: skip
