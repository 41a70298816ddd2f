"""What kernels must know of a GPU, asked once; and the calls of an operator, by the kind of its operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.product import by_tokens, matrix_of_tokens
from gossamer.native.cuda import calls
from gossamer.native.cuda.calls import Buffer, Call

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
#: Bytes from one line to the next that kernels can count.
MOST_LINE = 2**31
#: Kinds of operands of an operator that are remembered: a server sees every number of tokens.
MOST_KINDS = 4096


@lru_cache(maxsize=16)
def capability(device: int) -> tuple[int, int]:
    """Return the compute capability of a device."""
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=16)
def processors(device: int) -> int:
    """Return how many multiprocessors a device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def named(capability: tuple[int, int]) -> str:
    """Return a compute capability in words.

    Examples
    --------
    >>> named((9, 0)), named((8, 9))
    ('compute capability 9.0', 'compute capability 8.9')
    """
    return f"compute capability {capability[0]}.{capability[1]}"


def token_lines(x: Tensor) -> Tensor:
    """Return x, or a copy of it, token-major with lines at multiples of 16 bytes (of 16-bit elements).

    Examples
    --------
    >>> import torch
    >>> token_lines(torch.zeros(3, 10).half()).stride(), token_lines(torch.zeros(16, 3).half().t()).stride()
    ((16, 1), (16, 1))
    """
    line, inner = x.stride()
    if inner == 1 and line % 8 == 0 and line >= x.shape[1] and 2 * line < MOST_LINE and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_empty((x.shape[0], -(-x.shape[1] // 8) * 8))
    return padded[:, : x.shape[1]].copy_(x)


class Kinds:
    """The calls of an operator, each made once for operands of a kind: types, sizes and strides.

    Parameters
    ----------
    tensors
        How many arguments of the operator are tensors; the rest are integers.
    prepare
        Brings arguments into the order that kernels take; returns them as they are if they have it, None if there is no
        kernel for them.
    decide
        Makes a call from prepared arguments, or raises what is wrong with them.
    instead
        What the operator is where there is no kernel.
    x
        The number of the argument that has tokens. The functions get it as a matrix; the operator takes more
        dimensions. None: arguments have one shape only.
    """

    def __init__(
        self,
        tensors: int,
        prepare: Callable[..., tuple[Any, ...] | None],
        decide: Callable[..., Call],
        instead: Callable[..., Tensor],
        x: int | None = 0,
    ) -> None:
        self._tensors, self._prepare, self._decide, self._instead = tensors, prepare, decide, instead
        self._x, self.run = x, self._run if x is None else by_tokens(self._run, x)
        self._calls: dict[tuple[Any, ...], Call] = {}

    def _call_of(self, arguments: tuple[Any, ...]) -> Call:
        tensors, numbers = arguments[: self._tensors], arguments[self._tensors :]
        each = (None if t is None else (t.shape, t.stride(), t.dtype, t.get_device()) for t in tensors)
        key = (*each, numbers)
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= MOST_KINDS:
                self._calls.clear()
            call = self._calls[key] = self._decide(*arguments)
        return call

    def _run(self, *arguments: Any) -> Tensor:
        """Return the result of the operator for a matrix of tokens."""
        ready = self._prepare(*arguments)
        if ready is None:
            return self._instead(*arguments)
        call, tensors = self._call_of(ready), ready[: self._tensors]
        if not call.fits(tensors):
            copies = (t if t is None or t.data_ptr() % 16 == 0 else t.clone() for t in tensors)
            return self._run(*copies, *ready[self._tensors :])
        return call(*tensors)

    def slow(self, *arguments: Any) -> Tensor:
        """As :meth:`run`, for ``launch.cpp``, which goes without it when operands of the same kind come again."""
        try:
            out, given = self.run(*arguments), arguments
            if self._x is not None and (x := arguments[self._x]).dim() > 2:
                given = (*arguments[: self._x], matrix_of_tokens(x), *arguments[self._x + 1 :])
            ready = self._prepare(*given)
            if ready is not None and all(new is old for new, old in zip(ready, given, strict=True)):
                call = self._call_of(ready)
                reshaped: Call | None = call
                if self._x is not None and given is not arguments:
                    reshaped = for_more_dimensions(call, arguments[self._x], given[self._x])
                if reshaped is not None:
                    calls.remember(reshaped, arguments[0].get_device())
        except Exception as error:
            if not calls.refuse(str(error)):
                raise
            return torch.empty(0, device=arguments[0].device)
        return out


def for_more_dimensions(call: Call, x: Tensor, tokens: Tensor) -> Call | None:
    """Return the call of a matrix of tokens as one of x [..., cols]: only the result's shape is another.

    None where x had to be copied to be a matrix, or where the result is no contiguous one.
    """
    shape, strides, dtype = call.buffers[-1]
    if tokens.data_ptr() != x.data_ptr() or strides != (shape[-1], 1):
        return None
    shape = (*x.shape[:-1], shape[-1])
    result = Buffer(shape, torch.empty(shape, device="meta").stride(), dtype)
    return call._replace(buffers=(*call.buffers[:-1], result))


def register(library: torch.library.Library, name: str, kinds: Kinds) -> None:
    """Make the calls of an operator its implementation on a GPU."""
    library.impl(f"{name}_slow", kinds.slow, "CUDA")
    if calls.library() is None:
        library.impl(name, kinds.run, "CUDA")
