"""torch.einsum with a sparse operand, and which other torch calls are einsums."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.design import NoKernelError
from gossamer.compiler.run.crossover import dense_wins
from gossamer.compiler.run.runtime import available
from gossamer.core.look import dtype_of
from gossamer.core.table import implements
from gossamer.formats import Format
from gossamer.ops.einsum import einsum
from gossamer.ops.plans_of import plan_of

_TYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.bfloat16)


class Task(NamedTuple):
    """A call of :func:`gossamer.einsum`."""

    expression: str
    tensors: tuple[Tensor, ...]
    out: Format | None = None

    def run(self) -> Any:
        """Compute it."""
        return einsum(self.expression, *self.tensors, out=self.out)

    def describe(self) -> str:
        """Say what the compiler would do."""
        call = f"gs.einsum({self.expression!r})"
        try:
            plan = plan_of(self.expression, self.tensors, self.out)
        except NoKernelError as error:
            return f"{call} computes on dense copies: {error}"
        if plan is None:
            return f"{call} is torch's: no operand is sparse"
        if dense_wins(plan):
            return f"{call} leaves it to torch: at this density a dense product is faster (gs.dense_from)"
        return f"as {call}: " + plan.explain().replace("\n", "\n  ")


def _operands(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands


def _takes_einsum(equation: Any, *operands: Any) -> str | None:
    operands = _operands(operands)
    plain = isinstance(equation, str) and all(c.isalpha() or c in ",.->" for c in equation.replace(" ", ""))
    if not (plain or torch.compiler.is_compiling()):
        return "the equation is not a string of letters"
    return None if all(isinstance(t, Tensor) for t in operands) else "an operand is no tensor"


def _takes_compiled(equation: Any, *operands: Any) -> str | None:
    refused = _takes_einsum(equation, *operands)
    if refused is not None:
        return refused
    first = _operands(operands)[0]
    on_gpu = gpu.on_gpu(first.device)
    if (first.device.type != "cpu" and not on_gpu) or dtype_of(first) not in _TYPES:
        return "the compiler takes CPU and CUDA tensors of float32, float64, int32, int64 and half precision"
    return None if on_gpu or available() else "there is no C compiler"


def _describe(equation: str, *operands: Any) -> str:
    return Task(equation, _operands(operands)).describe()


@implements(torch.einsum, (Format,) * 9, when=_takes_einsum, how="fallback")
def einsum_on_dense(equation: Any, *operands: Any) -> Any:
    """``torch.einsum`` on dense copies; the result has the format that a kernel would give."""
    return einsum(equation, *_operands(operands))


@implements(torch.einsum, (Format,) * 9, when=_takes_compiled, how="compiled", detail=_describe)
def torch_einsum(equation: Any, *operands: Any) -> Any:
    """``torch.einsum`` with a sparse operand."""
    return einsum(equation, *_operands(operands))
