"""From an einsum to a kernel: index notation, a schedule, a loop nest, C. See README.md in this folder.

Nothing here knows tensors or formats: :mod:`gossamer.ops.einsum` describes them to the compiler as stacks of levels.
"""

from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.notation import NotationError, parse
from gossamer.compiler.language.program import Derived, LevelUse, Output, Program, Stack, Strided, Walk
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.loops.schedule import Choice, Given, Scheduler, nest_order, schedule
from gossamer.compiler.run.kernel import Kernel, kernel

__all__ = [
    "Choice",
    "Derived",
    "Given",
    "Kernel",
    "LevelUse",
    "NotationError",
    "Output",
    "Program",
    "Scheduler",
    "Stack",
    "Statement",
    "Strided",
    "Walk",
    "interpret",
    "kernel",
    "nest_order",
    "parse",
    "schedule",
]
